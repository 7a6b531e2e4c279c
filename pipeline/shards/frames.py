"""TFRecord framing: length, masked crc32c of the length, payload, masked crc32c of the payload.

Writers frame records with it, readers check them. The bytes equal those of TensorFlow's writer.

For tools that report all damage, the frames of a shard in order, each with its problem if it has
one. Readers stop at the first damaged record; read_frames continues where, by the index, the next
one begins. Without an index, read_frames still checks all bytes, while walk_frames and walk_pieces
skip payloads and only report their places. Memory is one piece and one record, whatever the size of
the shard. Uses no storage."""

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple

import google_crc32c
import numpy as np

from pipeline.errors import CorruptRecordError

HEADER_BYTES = 12  # uint64 length + uint32 masked crc of these 8 bytes, little-endian
FOOTER_BYTES = 4  # uint32 masked crc of the payload
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_MASK_DELTA = 0xA282EAD8
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
MAX_INDEXED_BYTES = 2**32 - 1  # largest record that an index can describe
_HEADER = struct.Struct("<QI")


crc32c: Callable[[bytes | np.ndarray], int] = google_crc32c.value
"""The plain (unmasked) crc32c, as in the index and the manifest."""


def crc32c_of(pieces: Iterable[bytes]) -> int:
    """The plain crc32c of the concatenated pieces."""
    return functools.reduce(google_crc32c.extend, pieces, 0)


def masked(crc: int) -> int:
    """The form of a crc inside a frame: rotated right by 15 bits, plus a constant.

    The mask is needed because the crc of data that contains its own crc is weak."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """A complete frame."""
    header, footer = frame_ends(len(payload), crc32c(payload))
    return b"".join((header, payload, footer))


def frame_ends(payload_length: int, payload_crc: int) -> tuple[bytes, bytes]:
    """Header and footer of a payload, for writers that know its crc32c or write the frame in
    pieces."""
    return _header(payload_length), _CRC.pack(masked(payload_crc))


def frames(payloads: Sequence[bytes], crcs: np.ndarray) -> bytes:
    """The frames of many payloads, one after the other. crcs: uint32 [n], their crc32c."""
    pieces = [b""] * (3 * len(payloads))
    pieces[::3] = [_header(len(payload)) for payload in payloads]
    pieces[1::3] = payloads
    footers = ((crcs >> 15 | crcs << 17) + np.uint32(_MASK_DELTA)).astype("<u4")
    pieces[2::3] = footers.view(f"V{FOOTER_BYTES}").tolist()
    return b"".join(pieces)


# small records often have equal sizes, and headers take half of the time
@functools.lru_cache(maxsize=1024)
def _header(payload_length: int) -> bytes:
    length = _LENGTH.pack(payload_length)
    return length + _CRC.pack(masked(crc32c(length)))


def proven_crc(payload: bytes, crc: int) -> int:
    """The crc32c of a payload, checked against `crc`, the unmasked one in the index.

    The frame's own checksums would accept a wrong but intact record, and damage to them alone is
    harmless. The CorruptRecordError does not name the record; the caller adds it."""
    delivered = crc32c(payload)
    if delivered != crc:
        raise CorruptRecordError(
            f"crc32c is {delivered:08x}, the index says {crc:08x}. The shard is damaged or was "
            "replaced since; infeed verify lists all damage and says how to repair it."
        )
    return delivered


class Frame(NamedTuple):
    """One record of a shard, as it was read."""

    record: int  # within the shard
    offset: int  # of the frame
    payload: bytes
    problem: str = ""  # "" if there is none
    crc: int = 0  # crc32c of the payload as it was read
    lost: bool = False  # no later record can be found


Compression = Literal["gzip", "zlib"]


def compression_of(head: bytes) -> Compression | None:
    """The compression of a TFRecord file by its first 12 bytes: GZIP or ZLIB as TensorFlow writes
    them, or none.

    A header with the right checksum is that of a record, even if it looks compressed."""
    if len(head) == HEADER_BYTES and not _header_problem(head):
        return None
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zlib" if head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0 else None


class FramePlace(NamedTuple):
    """The place of one record of a TFRecord file, and the checksum in its frame."""

    offset: int  # of the frame
    length: int  # of the payload
    stored_crc: int  # the masked crc32c after the payload, not checked
    problem: str = ""  # why this record and all later ones cannot be read


def walk_frames(file: BinaryIO, size: int) -> Iterator[FramePlace]:
    """The records of a TFRecord file of `size` bytes, without their payloads: reads about 16 bytes
    per record.

    If a header is damaged or the file ends inside a record, the last place has the problem and the
    bytes left."""
    offset = 0
    header = file.read(HEADER_BYTES)
    while offset < size:
        length, problem = _length_of(header)
        end = offset + length + FRAME_BYTES
        following = b""
        if not problem and end <= size:
            file.seek(end - FOOTER_BYTES)
            following = file.read(FOOTER_BYTES + HEADER_BYTES)
        if len(following) < FOOTER_BYTES:  # also if the file has been cut since it was listed
            problem = problem or f"the file ends at byte {size}, inside its {length} bytes"
            yield FramePlace(
                offset, 0, 0, f"{problem}; the {size - offset} bytes from here on are unreadable"
            )
            return
        yield FramePlace(offset, length, _CRC.unpack_from(following)[0])
        offset = end
        header = following[FOOTER_BYTES:]


def walk_pieces(pieces: Iterable[bytes]) -> Iterator[FramePlace]:
    """Like walk_frames, for a file in pieces of any size. Never assembles a payload."""
    stream = _Stream(pieces)
    while True:
        offset = stream.offset
        header = stream.take(HEADER_BYTES)
        if not header:
            return
        length, problem = _length_of(header)
        if not problem:
            stream.skip(length)
            footer = stream.take(FOOTER_BYTES)
            if len(footer) == FOOTER_BYTES:
                yield FramePlace(offset, length, _CRC.unpack(footer)[0])
                continue
            problem = f"the file ends at byte {stream.offset}, inside its {length} bytes"
        yield FramePlace(offset, 0, 0, f"{problem}; the rest is unreadable")
        return


def payload_of_frame(data: bytes) -> tuple[bytes, str]:
    """The payload of a complete frame, and its problem ("" if there is none)."""
    payload = data[HEADER_BYTES:-FOOTER_BYTES]
    header = data[:HEADER_BYTES]
    footer = data[-FOOTER_BYTES:]
    return payload, _header_problem(header) or _payload_problem(crc32c(payload), footer)


def read_frames(
    pieces: Iterable[bytes], rows: np.ndarray | None, max_bytes: int = MAX_INDEXED_BYTES
) -> Iterator[Frame]:
    """The frames in the bytes of a shard, which arrive in pieces of any size.

    rows: the shard's rows of the index, uint32 [records, 2]. With them, damage costs one record,
    and an intact but wrong record is found too. Without them (None), nothing is found after a
    damaged header, or after one with a length above max_bytes, which is not read into memory. If
    the shard ends early, the last frame has that problem. Pieces after the last frame are not
    consumed."""
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
                problem = f"its header says {length} bytes; at most {max_bytes} are allowed here"
        if rows is None and problem:
            problem += "; without an index, later records in this shard cannot be found"
            yield Frame(record, offset, b"", problem, lost=True)
            return
        payload = stream.take(length or 0)
        footer = stream.take(FOOTER_BYTES)
        if len(footer) < FOOTER_BYTES:  # also if the header or the payload is cut short
            after = 0 if rows is None else len(rows) - record - 1
            also = f"; it and all {after} records after it are missing" if after else ""
            problem = f"the shard ends inside it, at byte {stream.offset}{also}"
            yield Frame(record, offset, b"", problem, lost=True)
            return
        actual = crc32c(payload)
        problem = problem or _payload_problem(actual, footer, crc)
        yield Frame(record, offset, payload, problem, actual)


def _length_of(header: bytes) -> tuple[int, str]:
    """The length of the payload, and the problem of the header."""
    if len(header) < HEADER_BYTES:
        return 0, "the file ends inside its header"
    problem = _header_problem(header)
    return 0 if problem else _HEADER.unpack(header)[0], problem


def _header_problem(header: bytes, length: int | None = None) -> str:
    stated, crc = _HEADER.unpack(header)
    if length is not None and stated != length:
        return f"its header says {stated} bytes, the index says {length}"
    if crc != masked(crc32c(header[:8])):
        return "the checksum of its length is wrong"
    return ""


def _payload_problem(actual: int, footer: bytes, crc: int | None = None) -> str:
    intact = _CRC.unpack(footer) == (masked(actual),)
    if crc is not None and actual != crc:
        other = " (an intact record, but another one)" if intact else ""
        return f"its payload has crc32c {actual:08x}, the index says {crc:08x}{other}"
    return "" if intact else f"its payload has crc32c {actual:08x}, not the one stored after it"


class _Stream:
    """Reads exact numbers of bytes across the ends of pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._at = 0
        self.offset = 0  # of the next byte

    def take(self, size: int) -> bytes:
        """The next bytes; fewer only at the end."""
        if self._at + size <= len(self._piece):  # almost always
            self._at += size
            self.offset += size
            return self._piece[self._at - size : self._at]
        return b"".join(self._piece[begin:end] for begin, end in self._over(size))

    def skip(self, size: int) -> None:
        """Skips the next bytes, at most to the end."""
        for _ in self._over(size):
            pass

    def _over(self, size: int) -> Iterator[tuple[int, int]]:
        """The places of the next bytes, piece by piece."""
        while True:
            begin = self._at
            end = min(len(self._piece), self._at + size)
            self._at = end
            self.offset += end - begin
            size -= end - begin
            yield begin, end
            piece = next(self._pieces, None) if size else None
            if piece is None:
                return
            self._piece = piece
            self._at = 0
