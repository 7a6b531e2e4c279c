"""A file that can only be read from its front: a TFRecord file without an index, or lines of text.

Used to count and to read such files, compressed or not. Memory: a few pieces of the file and one record."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import ShardError
from pipeline.shards.frames import Compression, Frame, FramePlace, read_frames, walk_frames, walk_pieces
from pipeline.shards.record import crc32c
from pipeline.storage.storage import Stat, Storage

REQUEST_BYTES = 1 << 20

Kind = Literal["tfrecord", "text"]


@dataclass(frozen=True)
class SequentialFile:
    """A file as listed by the storage."""

    path: str
    stat: Stat
    kind: Kind
    compression: Compression | None = None

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.stat.bytes


@dataclass(frozen=True)
class Content:
    """The number and size of a file's records, counted by reading through it."""

    records: int
    bytes: int  # of the records, uncompressed


def content_of(storage: Storage, file: SequentialFile) -> Content:
    """Counts the records without checking payloads. Of a plain TFRecord file on a disk, only the headers are read.

    Raises ShardError naming the file and the record where it is damaged; StorageError."""
    if not file.bytes:
        storage.stat(file.path)  # raises for dangling links and pipes, which are also listed as empty files
    if file.kind == "tfrecord" and not file.compression and not storage.remote:
        with storage.open(file.path) as opened:
            return _counted_frames(file, walk_frames(opened, file.bytes))
    pieces = _pieces(storage, file, lambda: file.bytes)
    return _counted_lines(file, pieces) if file.kind == "text" else _counted_frames(file, walk_pieces(pieces))


def frames_of(
    storage: Storage, file: SequentialFile, batch_bytes: Callable[[], int], max_bytes: int
) -> Iterator[Frame]:
    """The records in order, each with its problem, if any.

    batch_bytes: how much to read at a time. max_bytes: of the largest record.
    Raises ShardError naming the file and the record from which on it cannot be read; StorageError."""
    pieces, record = _pieces(storage, file, batch_bytes), 0
    try:
        for frame in _lines(pieces) if file.kind == "text" else read_frames(pieces, None, max_bytes):
            if frame.lost:
                raise _damaged(file, record, f" at byte {frame.offset}: {frame.problem}")
            yield frame
            record += 1
    except zlib.error as e:
        raise _damaged(file, record, f" or a later one: {e}") from e


def _pieces(storage: Storage, file: SequentialFile, batch_bytes: Callable[[], int]) -> Iterator[bytes]:
    stored = _stored(storage, file, batch_bytes)
    return inflated(stored, file.compression) if file.compression else stored


def _stored(storage: Storage, file: SequentialFile, batch_bytes: Callable[[], int]) -> Iterator[bytes]:
    at = 0
    while at < file.bytes:
        end = min(file.bytes, at + batch_bytes())
        places = range(at, end, REQUEST_BYTES)
        yield from storage.read_ranges((file.path, place, min(REQUEST_BYTES, end - place)) for place in places)
        at = end


def _counted_frames(file: SequentialFile, places: Iterable[FramePlace]) -> Content:
    records = size = 0
    try:
        for place in places:
            if place.problem:
                raise _damaged(file, records, f" at byte {place.offset}: {place.problem}")
            records, size = records + 1, size + place.length
    except zlib.error as e:
        raise _damaged(file, records, f" or a later one: {e}") from e
    return Content(records, size)


def _counted_lines(file: SequentialFile, pieces: Iterable[bytes]) -> Content:
    records = size = 0
    begun = False  # whether a line that is not empty has started and not ended
    try:
        for piece in pieces:
            _, newline, rest = piece.rpartition(b"\n")
            records, size = records + piece.count(b"\n"), size + len(piece)
            begun = bool(rest.strip(b"\r")) or (begun and not newline)
    except zlib.error as e:
        raise _damaged(file, records, f" or a later one: {e}") from e
    return Content(records + begun, size)


def _damaged(file: SequentialFile, record: int, problem: str) -> ShardError:
    return ShardError(
        f"{file.path}, record {record}{problem}. The rest of the file cannot be read. Copy the file again"
        + (", or convert without it: python -m converters.tfrecord_to_gcs." if file.kind == "tfrecord" else ".")
    )


def _lines(pieces: Iterable[bytes]) -> Iterator[Frame]:
    r"""Splits like TextLineDataset: at \n, dropping every \r; text after the last \n is a line unless it is empty."""
    record = 0
    begun: list[bytes] = []
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun = []
        for line in whole:
            yield _line(record, line)
            record += 1
        begun.append(rest)
    if (last := _line(record, b"".join(begun))).payload:
        yield last


def _line(record: int, line: bytes) -> Frame:
    payload = line.replace(b"\r", b"")
    return Frame(record, 0, payload, crc=crc32c(payload))  # a line is never damaged, so no message needs its offset


MAX_PIECE_BYTES = 1 << 20  # a small file may inflate to a thousand times its size
_WINDOW_BITS = {"gzip": 31, "zlib": 15}


def inflated(pieces: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """The decompressed content of the pieces of a file. Raises zlib.error if it is damaged or ends early."""
    inflate = None
    for data in pieces:
        while data:
            if inflate is None or inflate.eof:
                if inflate and compression == "zlib":
                    raise zlib.error("there is data after the end of the zlib stream")
                if inflate and not (data := data.lstrip(b"\0")):  # like gzip, takes zeros after a member as padding
                    break
                inflate = zlib.decompressobj(_WINDOW_BITS[compression])
            if piece := inflate.decompress(data, MAX_PIECE_BYTES):
                yield piece
            data = inflate.unconsumed_tail or inflate.unused_data  # noqa: PLW2901 - the rest of it
    while inflate is None or not inflate.eof:
        piece = inflate.decompress(b"", MAX_PIECE_BYTES) if inflate else b""
        if not piece:
            raise zlib.error(f"the {compression} stream has no end")
        yield piece
