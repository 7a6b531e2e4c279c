"""Damage to bytes, by kind: (random generator, bytes) -> bytes. test_fuzz has this folder on its path."""

import struct
import zlib
from collections.abc import Callable, Mapping

import numpy as np

BLOCK = 512  # of a tar

Mutation = Callable[[np.random.Generator, bytes], bytes]


def _place(rng: np.random.Generator, data: bytes, step: int = 1) -> int:
    return int(rng.integers(0, max(1, len(data) // step))) * step


def _noise(rng: np.random.Generator, count: int) -> bytes:
    return rng.integers(0, 256, count, np.uint8).tobytes()


def _truncated(rng, data):
    return data[: _place(rng, data)]


def _flipped(rng, data):
    spoilt = bytearray(data)
    for _ in range(int(rng.integers(1, 17))):
        if spoilt:
            spoilt[_place(rng, data)] ^= 1 << int(rng.integers(8))
    return bytes(spoilt)


def _wrong_magic(rng, data):
    magics = (
        b"\xff\xd8",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\x00\x00\x00\x00WEBP",
        b"GIF89a",
        b"\x1f\x8b\x08",
        b"PK\x03\x04",
    )
    magic = (*magics, _noise(rng, 16))[int(rng.integers(7))]
    return magic + data[len(magic) :]


def _zeroed_block(rng, data):
    at = _place(rng, data, BLOCK)
    return data[:at] + bytes(len(data[at : at + BLOCK])) + data[at + BLOCK :]


def _repeated_block(rng, data):
    at = _place(rng, data, BLOCK)
    return data[: at + BLOCK] + data[at:]


def _dropped_block(rng, data):
    at = _place(rng, data, BLOCK)
    return data[:at] + data[at + BLOCK :]


def _inserted(rng, data):
    at = _place(rng, data)
    return data[:at] + _noise(rng, int(rng.integers(1, 700))) + data[at:]


def _swapped_blocks(rng, data):
    a, b = sorted((_place(rng, data, BLOCK), _place(rng, data, BLOCK)))
    if b - a < BLOCK:
        return data
    return (
        data[:a]
        + data[b : b + BLOCK]
        + data[a + BLOCK : b]
        + data[a : a + BLOCK]
        + data[b + BLOCK :]
    )


BYTES: Mapping[str, Mutation] = {
    "truncated": _truncated,
    "flipped": _flipped,
    "empty": lambda rng, data: b"",
    "wrong magic": _wrong_magic,
    "zeroed block": _zeroed_block,
    "repeated block": _repeated_block,
    "dropped block": _dropped_block,
    "inserted": _inserted,
    "swapped blocks": _swapped_blocks,
    "appended": lambda rng, data: data + _noise(rng, int(rng.integers(1, 2000))),
    "noise": lambda rng, data: _noise(rng, len(data)),
}

# 9,500 x 9,500 is below our bound and above Pillow's
_SIZES = (0, 1, 9_500, 10_001, 16_383, 65_500, 65_535)


def absurd_size(rng: np.random.Generator, data: bytes) -> bytes:
    """A JPEG, PNG or WebP whose header says another size; checksums hold."""
    height, width = (_SIZES[int(rng.integers(len(_SIZES)))] for _ in range(2))
    if data.startswith(b"\xff\xd8"):
        at = next(i for i in range(2, len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
        return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]
    if data.startswith(b"\x89PNG"):
        scale = int(rng.choice([1, 2**16]))
        header = data[12:16] + struct.pack(">II", width * scale % 2**32, height) + data[24:29]
        return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
    at, high = (21, 0) if data[12:16] == b"VP8L" else (26, 0)
    size = (
        (width & 0x3FFF) | (height & 0x3FFF) << 14
        if data[12:16] == b"VP8L"
        else width | height << 16
    )
    return data[:at] + struct.pack("<I", (size | high) & 0xFFFFFFFF) + data[at + 4 :]


def header_field(rng: np.random.Generator, data: bytes) -> bytes:
    """A tar one of whose headers, at any depth, says something else, under a checksum that holds."""
    blocks = range(0, len(data) - BLOCK + 1, BLOCK)
    headers = [at for at in blocks if data[at + 257 : at + 262] == b"ustar"]
    at = headers[int(rng.integers(len(headers)))]
    header = bytearray(data[at : at + BLOCK])
    field, values = _FIELDS[int(rng.integers(len(_FIELDS)))]
    value = (*values, _noise(rng, field.stop - field.start))[int(rng.integers(len(values) + 1))]
    header[field] = value.ljust(field.stop - field.start, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + BLOCK :]


_NUMBERS = (
    *(b"%011o\0" % number for number in (0, 1, 511, 513, 8**10, 8**11 - 1)),
    b"\xff" * 12,  # base 256: -1
    b"\xff" * 10 + b"\xfe\x00",  # -512: back to this very header
    b"\x80" + b"\xff" * 11,  # 2^88 - 1
    b"not a number",
)
_TYPES = tuple(bytes([kind]) for kind in b"\x00012345678LKSxgXDVMNA")
_NAMES = (
    b"",
    b"/",
    b"../../escaped",
    b"/absolute",
    b"a/b/c/",
    b"n\xff\xfe.JPEG",
    b"two\nlines.JPEG",
    b"n" * 100,
)
_FIELDS = (
    (slice(124, 136), _NUMBERS),
    (slice(124, 136), _NUMBERS),
    (slice(156, 157), _TYPES),
    (slice(0, 100), _NAMES),
    (slice(345, 500), (b"..", b"\xff" * 155)),
    (slice(386, 500), (b"\x01" * 114,)),
)
