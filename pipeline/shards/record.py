"""TFRecord framing: length, masked crc32c of the length, payload, masked crc32c of the payload.

Writers frame records with it, readers check them. The bytes equal those of TensorFlow's writer."""

import functools
import struct
from collections.abc import Iterable

import google_crc32c

from pipeline.errors import CorruptRecordError

HEADER_BYTES = 12  # uint64 length + uint32 masked crc of these 8 bytes, little-endian
FOOTER_BYTES = 4  # uint32 masked crc of the payload
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_MASK_DELTA = 0xA282EAD8

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def crc32c(data: bytes) -> int:
    """The plain (unmasked) crc32c of `data`, as in the index and the manifest."""
    return google_crc32c.value(data)


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
    """Header and footer of a payload, for writers that know its crc32c or write the frame in pieces."""
    return _header(payload_length), _CRC.pack(masked(payload_crc))


@functools.lru_cache(maxsize=1024)  # small records often have equal sizes, and headers take half of the time
def _header(payload_length: int) -> bytes:
    length = _LENGTH.pack(payload_length)
    return length + _CRC.pack(masked(crc32c(length)))


def proven_crc(payload: bytes, crc: int) -> int:
    """The crc32c of a payload, checked against `crc`, the unmasked one in the index.

    The frame's own checksums would accept a wrong but intact record, and damage to them alone is harmless. The
    CorruptRecordError does not name the record; the caller adds it."""
    delivered = crc32c(payload)
    if delivered != crc:
        raise CorruptRecordError(
            f"crc32c is {delivered:08x}, the index says {crc:08x}. "
            "The shard is damaged or was replaced after conversion; convert it again with --verify-existing."
        )
    return delivered
