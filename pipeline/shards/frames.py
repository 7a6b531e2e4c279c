"""The frames of one shard, front to back, each with what is wrong with it: for tools that must name every damage.

Readers stop at the first damaged record; this goes on behind it, wherever the index says that the next one begins.
Memory is a piece and a record, however large the shard. Bytes in, values out: no storage. Without an index there are
two ways: read_frames proves all bytes, walk_frames and walk_pieces step over payloads and only say where they are."""

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from pipeline.shards.record import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, crc32c, masked

__all__ = [
    "MAX_INDEXED_BYTES",
    "Compression",
    "Frame",
    "Place",
    "compression_of",
    "payload_of_frame",
    "read_frames",
    "walk_frames",
    "walk_pieces",
]

MAX_INDEXED_BYTES = 2**32 - 1  # of a record: what an index can say
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


class Frame(NamedTuple):
    """One record of a shard, as it was found."""

    record: int  # within the shard
    offset: int  # of the frame
    payload: bytes
    problem: str = ""  # what is wrong with it, if anything is
    crc: int = 0  # crc32c of the payload as it was found
    lost: bool = False  # no record behind it can be found


Compression = Literal["gzip", "zlib"]


def compression_of(head: bytes) -> Compression | None:
    """How a TFRecord file is compressed, by its first 12 bytes: as TensorFlow writes GZIP and ZLIB, or not at all.

    A header with the right checksum is that of a record, whatever else it looks like."""
    if len(head) == HEADER_BYTES and not _header_problem(head, None):
        return None
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zlib" if head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0 else None


class Place(NamedTuple):
    """Where one record of a TFRecord file is, and what its frame says of it."""

    offset: int  # of the frame
    length: int  # of the payload
    stored_crc: int  # the masked crc32c behind the payload: what its writer says of it, not proven
    problem: str = ""  # why this record, and all behind it, is out of reach


def walk_frames(file: BinaryIO, size: int) -> Iterator[Place]:
    """The records of a TFRecord file of so many bytes, without their payloads: ~16 bytes are asked for each.

    Where a header is damaged or the file ends inside a record, the last place says so, with how much is left."""
    offset, header = 0, file.read(HEADER_BYTES)
    while offset < size:
        problem = _header_problem(header, None) if len(header) == HEADER_BYTES else "the file ends inside its header"
        length = 0 if problem else _HEADER.unpack(header)[0]
        end = offset + length + FRAME_BYTES
        if not problem and end > size:
            problem = f"the file ends at byte {size}, inside its {length} bytes"
        if problem:
            yield Place(offset, 0, 0, f"{problem}; the {size - offset} bytes from here on are out of reach")
            return
        file.seek(end - FOOTER_BYTES)
        following = file.read(FOOTER_BYTES + HEADER_BYTES)
        yield Place(offset, length, _CRC.unpack_from(following)[0])
        offset, header = end, following[FOOTER_BYTES:]


def walk_pieces(pieces: Iterable[bytes]) -> Iterator[Place]:
    """What walk_frames gives, of a file that comes in pieces of any size; no payload is put together."""
    stream = _Stream(pieces)
    while True:
        offset, header = stream.offset, stream.take(HEADER_BYTES)
        if not header:
            return
        problem = _header_problem(header, None) if len(header) == HEADER_BYTES else "the file ends inside its header"
        length = 0 if problem else _HEADER.unpack(header)[0]
        if not problem:
            stream.skip(length)
            footer = stream.take(FOOTER_BYTES)
            if len(footer) == FOOTER_BYTES:
                yield Place(offset, length, _CRC.unpack(footer)[0])
                continue
            problem = f"the file ends at byte {stream.offset}, inside its {length} bytes"
        yield Place(offset, 0, 0, f"{problem}; what follows is out of reach")
        return


def payload_of_frame(data: bytes) -> tuple[bytes, str]:
    """The payload of one whole frame, and what is wrong with it ("" if nothing is)."""
    payload = data[HEADER_BYTES:-FOOTER_BYTES]
    header, footer = data[:HEADER_BYTES], data[-FOOTER_BYTES:]
    return payload, _header_problem(header, None) or _payload_problem(crc32c(payload), footer, None)


def read_frames(
    pieces: Iterable[bytes], rows: np.ndarray | None, max_bytes: int = MAX_INDEXED_BYTES
) -> Iterator[Frame]:
    """The frames in the bytes of a shard, which come in pieces of any size.

    rows: the shard's rows of the index, uint32 [records, 2]. With it damage costs one record, and an intact record
    that is not the promised one is found as well. Without it (None) a damaged header hides all that follows, and so
    does one that speaks of more than max_bytes, which are not taken into memory.
    Where the shard ends early, the last frame says so. Pieces beyond the last frame are left untaken."""
    stream = _Stream(pieces)
    for record in itertools.count() if rows is None else range(len(rows)):
        offset = stream.offset
        header = stream.take(HEADER_BYTES)
        if rows is None and not header:
            return
        length, crc = (None, None) if rows is None else rows[record].tolist()
        problem = "" if len(header) < HEADER_BYTES else _header_problem(header, length)
        if length is None and len(header) == HEADER_BYTES:
            length = _HEADER.unpack(header)[0]
            if not problem and length > max_bytes:
                problem = f"its header says {length} bytes; up to {max_bytes} are looked for here"
        if rows is None and problem:
            problem += "; without an index, what follows in this shard is not found"
            yield Frame(record, offset, b"", problem, lost=True)
            return
        payload, footer = stream.take(length or 0), stream.take(FOOTER_BYTES)
        if len(header) + len(payload) + len(footer) < HEADER_BYTES + (length or 0) + FOOTER_BYTES:
            after = 0 if rows is None else len(rows) - record - 1
            also = f"; it and all {after} records after it are missing" if after else ""
            problem = f"the shard ends inside it, at byte {stream.offset}{also}"
            yield Frame(record, offset, b"", problem, lost=True)
            return
        there = crc32c(payload)
        yield Frame(record, offset, payload, problem or _payload_problem(there, footer, crc), there)


def _header_problem(header: bytes, length: int | None) -> str:
    there, crc = _HEADER.unpack(header)
    if length is not None and there != length:
        return f"its header says {there} bytes, the index says {length}"
    if crc != masked(crc32c(header[:8])):
        return "the checksum of its length is wrong"
    return ""


def _payload_problem(there: int, footer: bytes, crc: int | None) -> str:
    (stored,) = _CRC.unpack(footer)
    if crc is not None and there != crc:
        whole = " (an intact record, but another one)" if stored == masked(there) else ""
        return f"its payload has crc32c {there:08x}, the index says {crc:08x}{whole}"
    if stored != masked(there):
        return f"its payload has crc32c {there:08x}, and not the one that stands behind it"
    return ""


class _Stream:
    """Takes exactly so many bytes, over the ends of pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._piece, self._at = iter(pieces), b"", 0
        self.offset = 0  # of the next byte

    def take(self, size: int) -> bytes:
        """The next bytes; fewer only at the end."""
        if self._at + size <= len(self._piece):  # nearly always
            self._at += size
            self.offset += size
            return self._piece[self._at - size : self._at]
        return b"".join(self._piece[begin:end] for begin, end in self._over(size))

    def skip(self, size: int) -> None:
        """Goes on behind the next bytes; over the end only to the end."""
        for _ in self._over(size):
            pass

    def _over(self, size: int) -> Iterator[tuple[int, int]]:
        """Where the next bytes are in one piece after the other."""
        while True:
            begin, end = self._at, min(len(self._piece), self._at + size)
            self._at, self.offset, size = end, self.offset + end - begin, size - (end - begin)
            yield begin, end
            piece = next(self._pieces, None) if size else None
            if piece is None:
                return
            self._piece, self._at = piece, 0
