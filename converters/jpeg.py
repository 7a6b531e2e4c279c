"""What a JPEG's bytes say without decoding it: size and colour components; and the repairs that ImageNet needs.

By content, never by a list of names: a PNG named .JPEG and CMYK photos become RGB JPEGs of quality 100."""

import io
import struct
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from beam_jobs.converter import Reject

__all__ = ["VERIFY_LEVELS", "Jpeg", "Verify", "to_rgb_jpeg"]

Verify = Literal["header", "end", "decode"]
VERIFY_LEVELS: tuple[Verify, ...] = ("header", "end", "decode")

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_MAX_PIXELS = 100_000_000  # 300 MB decoded: above it a file is taken for a decompression bomb
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..15 without DHT, JPG, DAC
_BARE_MARKERS = frozenset(range(0xD0, 0xD8)) | {0x01}  # RSTn, TEM: no length follows


@dataclass(frozen=True)
class Jpeg:
    """An RGB or grey JPEG file, and what was done to get there."""

    data: bytes
    height: int
    width: int
    fixups: tuple[str, ...] = ()


def to_rgb_jpeg(data: bytes, verify: Verify) -> Jpeg:
    """The image as a JPEG that every decoder takes. Raises Reject saying what is wrong with it.

    verify: "header" parses the frame header (~1 us; misses truncation), "end" also wants the end marker
    (~1 us; misses damage inside), "decode" decodes every pixel (~1 ms)."""
    if data.startswith(_PNG_MAGIC):
        return _reencoded(data, "png_to_jpeg")
    height, width, components = _frame_header(data)
    _check_size(height, width)
    if components == 4:
        return _reencoded(data, "cmyk_to_rgb")
    if verify == "decode" or (verify == "end" and not data.rstrip(b"\0\r\n").endswith(b"\xff\xd9")):
        _decode(data)  # without the marker at the very end: some writers append bytes, so decoding decides
    return Jpeg(data, height, width)


def _frame_header(data: bytes) -> tuple[int, int, int]:
    """(height, width, components) from the SOF segment."""
    if not data.startswith(b"\xff\xd8"):
        raise Reject(f"not a JPEG or PNG: begins with {data[:4].hex(' ') or 'nothing'}")
    position = 2
    try:
        while True:
            while data[position] != 0xFF:
                position += 1
            while data[position] == 0xFF:  # fill bytes
                position += 1
            marker = data[position]
            position += 1
            if marker in _FRAME_MARKERS:
                height, width, components = struct.unpack_from(">HHB", data, position + 3)
                return height, width, components
            if marker not in _BARE_MARKERS:
                position += struct.unpack_from(">H", data, position)[0]
    except (IndexError, struct.error):
        raise Reject(f"truncated JPEG: no frame header in its {len(data)} bytes") from None


def _check_size(height: int, width: int) -> None:
    if not height or not width or height * width > _MAX_PIXELS:
        raise Reject(f"{width}x{height} pixels; allowed are 1 to {_MAX_PIXELS:,}")


def _decode(data: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        _check_size(image.height, image.width)
        image.load()
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as e:
        kind = "PNG" if data.startswith(_PNG_MAGIC) else "JPEG"
        raise Reject(f"truncated or damaged {kind}: {str(e).replace(repr(data), '')[:200]}") from None
    return image


def _reencoded(data: bytes, fixup: str) -> Jpeg:
    image = _decode(data)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=100)
    return Jpeg(buffer.getvalue(), image.height, image.width, (fixup,))
