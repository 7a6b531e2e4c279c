"""Files that can only be read from their fronts, compressed or not: TFRecord files without an
index, or lines of text.

Counting needs memory for a few pieces of a file and one record. Reading returns records in any
order and keeps those passed on the way if they are in sight; one that was passed before costs
another pass over its file."""

import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import CorruptRecordError, ShardError
from pipeline.shards.frames import (
    HEADER_BYTES,
    Compression,
    Frame,
    FramePlace,
    compression_of,
    crc32c,
    read_frames,
    walk_frames,
    walk_pieces,
)
from pipeline.sources.lookahead import Lookahead
from pipeline.sources.records import RECORD_OBJECT_BYTES, Groups, Record
from pipeline.storage.storage import Listing, Stat, Storage

REQUEST_BYTES = 1 << 20

Kind = Literal["tfrecord", "text"]
MAX_PIECE_BYTES = 1 << 20  # a small file may inflate to a thousand times its size
_WINDOW_BITS = {"gzip": 31, "zlib": 15}
MAX_CURSORS = 128  # 64 streams, each moving from one file to the next
# read from a file at a time
LEAST_BATCH_BYTES = 1 << 16
MOST_BATCH_BYTES = 1 << 20
MOST_REMOTE_BATCH_BYTES = 1 << 24


@dataclass(frozen=True)
class SequentialFile:
    """A file as listed by the storage."""

    path: str
    stat: Stat
    kind: Kind
    compression: Compression | None = None


def compressions(storage: Storage, files: Listing) -> dict[str, Compression]:
    """The compression by path, of the files whose first bytes show one."""
    filled = [path for path, stat in files.items() if stat.bytes]
    heads = storage.read_ranges((path, 0, min(HEADER_BYTES, files[path].bytes)) for path in filled)
    return {
        path: compression
        for path, head in zip(filled, heads, strict=True)
        if (compression := compression_of(head))
    }


def counts_of(storage: Storage, file: SequentialFile) -> tuple[int, int]:
    """The number of records, and their bytes, uncompressed. Payloads are not checked; of a plain
    TFRecord file on a disk, only the headers are read.

    Raises ShardError naming the file and the record where it is damaged; StorageError."""
    if not file.stat.bytes:
        # raises for dangling links and pipes, which are also listed as empty files
        storage.stat(file.path)
    if file.kind == "tfrecord" and not file.compression and not storage.remote:
        with storage.open(file.path) as opened:
            return _counted_frames(file, walk_frames(opened, file.stat.bytes))
    pieces = _pieces(storage, file, lambda: file.stat.bytes)
    return (
        _counted_lines(pieces)
        if file.kind == "text"
        else _counted_frames(file, walk_pieces(pieces))
    )


def frames_of(
    storage: Storage, file: SequentialFile, batch_bytes: Callable[[], int], max_bytes: int
) -> Iterator[Frame]:
    """The records in order, each with its problem, if any.

    batch_bytes: how much to read at a time. max_bytes: of the largest record. Raises ShardError
    naming the file and the record from which on it cannot be read; StorageError."""
    pieces = _pieces(storage, file, batch_bytes)
    for frame in _lines(pieces) if file.kind == "text" else read_frames(pieces, None, max_bytes):
        if frame.lost:
            raise _damaged(file, f", record {frame.record} at byte {frame.offset}: {frame.problem}")
        yield frame


def _pieces(
    storage: Storage, file: SequentialFile, batch_bytes: Callable[[], int]
) -> Iterator[bytes]:
    stored = _stored(storage, file, batch_bytes)
    try:
        yield from inflated(stored, file.compression) if file.compression else stored
    except zlib.error as e:
        raise _damaged(file, f": {e}") from e


def _stored(
    storage: Storage, file: SequentialFile, batch_bytes: Callable[[], int]
) -> Iterator[bytes]:
    at = 0
    while at < file.stat.bytes:
        end = min(file.stat.bytes, at + batch_bytes())
        places = range(at, end, REQUEST_BYTES)
        yield from storage.read_ranges(
            (file.path, place, min(REQUEST_BYTES, end - place)) for place in places
        )
        at = end


def _counted_frames(file: SequentialFile, places: Iterable[FramePlace]) -> tuple[int, int]:
    records = size = 0
    for place in places:
        if place.problem:
            raise _damaged(file, f", record {records} at byte {place.offset}: {place.problem}")
        records += 1
        size += place.length
    return records, size


def _counted_lines(pieces: Iterable[bytes]) -> tuple[int, int]:
    records = size = 0
    begun = False  # whether a line that is not empty has started and not ended
    for piece in pieces:
        _, newline, rest = piece.rpartition(b"\n")
        records += piece.count(b"\n")
        size += len(piece)
        begun = bool(rest.strip(b"\r")) or (begun and not newline)
    return records + begun, size


def _damaged(file: SequentialFile, problem: str) -> ShardError:
    return ShardError(
        f"{file.path}{problem}. The rest of the file cannot be read. Copy the file again"
        + (
            ", or convert without it: python -m converters.tfrecord_to_gcs."
            if file.kind == "tfrecord"
            else "."
        )
    )


def _lines(pieces: Iterable[bytes]) -> Iterator[Frame]:
    r"""Splits like TextLineDataset: at \n, dropping every \r; text after the last \n is a line
    unless it is empty."""
    record = 0
    begun = list[bytes]()
    for piece in pieces:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join((*begun, lines[0]))
            begun = []
        for line in lines:
            yield _line(record, line)
            record += 1
        begun.append(rest)
    if (last := _line(record, b"".join(begun))).payload:
        yield last


def _line(record: int, line: bytes) -> Frame:
    payload = line.replace(b"\r", b"")
    # a line is never damaged, so no message needs its offset
    return Frame(record, 0, payload, crc=crc32c(payload))


def inflated(pieces: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """The decompressed content of the pieces of a file. Raises zlib.error if it is damaged or ends
    early."""
    inflate = None
    for data in pieces:
        while data:
            if inflate is None or inflate.eof:
                if inflate and compression == "zlib":
                    raise zlib.error("there is data after the end of the zlib stream")
                # like gzip, takes zeros after a member as padding
                if inflate and not (data := data.lstrip(b"\0")):
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


class CountedFile(NamedTuple):
    """A file, the result of counts_of for it, and the number of its first record."""

    file: SequentialFile
    records: int
    bytes: int
    first: int
    counted_by: str  # in errors, before the expected number of records


class SequentialReading(Iterable[list[Record]]):
    """See Reading: the records of groups, from files that can only be read from their fronts."""

    def __init__(
        self,
        storage: Storage,
        files: Sequence[CountedFile],
        groups: Groups,
        ahead_bytes: int,
    ) -> None:
        self.held_bytes = 0
        self._storage = storage
        self._files = files
        self._firsts = np.array([file.first for file in files])
        self._ahead_bytes = ahead_bytes
        self._lookahead = Lookahead(groups, ahead_bytes)
        self._cursors: dict[int, list[_Cursor]] = defaultdict(list)  # by file
        self._owners = dict[_Cursor, int]()  # of all cursors, the least recently used first
        self._kept = dict[int, Record]()

    def __iter__(self) -> Iterator[list[Record]]:
        for group in self._lookahead:
            (due,), _ = self._lookahead.due(lambda places: np.arange(places.shape[1]))
            self._read(due)
            records = [self._kept[record_id] for record_id in group.tolist()]
            for record_id in self._lookahead.used(group).tolist():
                self.held_bytes -= _held_bytes(self._kept.pop(record_id))
            yield records

    def _read(self, due: np.ndarray) -> None:
        """Keeps the records that are due (ascending), and those passed on the way that are in
        sight."""
        owners = (np.searchsorted(self._firsts, due, side="right") - 1).tolist()
        for record_id, owner in zip(due.tolist(), owners, strict=True):
            if record_id not in self._kept:
                self._pass_to(record_id, owner)

    def _pass_to(self, record_id: int, owner: int) -> None:
        counted = self._files[owner]
        record = record_id - counted.first
        # the file's nearest cursor before the record
        before = (each for each in self._cursors[owner] if each.next <= record)
        cursor = max(before, key=lambda each: each.next, default=None) or self._opened(owner)
        self._owners[cursor] = self._owners.pop(cursor, owner)
        for passed in itertools.islice(cursor.frames, record + 1 - cursor.next):
            number = counted.first + cursor.next
            cursor.next += 1
            if self._lookahead.sees(number) and number not in self._kept:
                self._kept[number] = _record(counted.file, passed)
                self.held_bytes += _held_bytes(self._kept[number])
        if cursor.next <= record:  # the file has ended
            raise _miscounted(counted, f"has {cursor.next} records")
        if cursor.next == counted.records:
            self._close(owner, cursor)
            # reads on, to the checksum at the end of a compressed file
            if next(cursor.frames, None):
                raise _miscounted(counted, "has more records")

    def _opened(self, owner: int) -> "_Cursor":
        if len(self._owners) == MAX_CURSORS:
            oldest = next(iter(self._owners))
            self._close(self._owners[oldest], oldest)
        counted = self._files[owner]
        cursor = _Cursor(frames_of(self._storage, counted.file, self._batch_bytes, counted.bytes))
        self._cursors[owner].append(cursor)
        return cursor

    def _close(self, owner: int, cursor: "_Cursor") -> None:
        self._cursors[owner].remove(cursor)
        if not self._cursors[owner]:
            del self._cursors[owner]
        del self._owners[cursor]

    def _batch_bytes(self) -> int:
        """The size with which all cursors together hold at most half the budget; held_bytes does
        not include it."""
        most = MOST_REMOTE_BATCH_BYTES if self._storage.remote else MOST_BATCH_BYTES
        return min(
            most, max(LEAST_BATCH_BYTES, self._ahead_bytes // (2 * max(1, len(self._owners))))
        )


@dataclass(eq=False)
class _Cursor:
    frames: Iterator[Frame]
    next: int = 0


def _record(file: SequentialFile, frame: Frame) -> Record:
    if not frame.problem:
        return frame.payload, frame.crc
    return CorruptRecordError(
        f"{file.path}, record {frame.record} at byte {frame.offset}: {frame.problem}. Copy the "
        "file again, or convert without the record: python -m converters.tfrecord_to_gcs."
    )


def _held_bytes(record: Record) -> int:
    return RECORD_OBJECT_BYTES + (len(record[0]) if isinstance(record, tuple) else 0)


def _miscounted(counted: CountedFile, change: str) -> ShardError:
    return ShardError(
        f"{counted.file.path} {change}; {counted.counted_by} {counted.records}. Copy the file "
        "again, or the metadata next to it."
    )
