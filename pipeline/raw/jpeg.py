"""JPEG headers, read without decoding, and the repairs that ImageNet needs.

Repairs go by content, never by lists of names: a PNG named .JPEG and CMYK photos become RGB JPEGs
of quality 100."""

import io
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from pipeline.errors import Reject

Verify = Literal["header", "end", "decode"]
MAX_PIXELS = 100_000_000  # 300 MB decoded; larger images count as decompression bombs
VERIFY_LEVELS: tuple[Verify, ...] = ("header", "end", "decode")

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_END = b"\xff\xd9"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..15 without DHT, JPG, DAC
# RSTn and TEM have no length; nor has a stuffed zero, which is not a marker: libjpeg skips it
_BARE_MARKERS = frozenset(range(0xD0, 0xD8)) | {0x00, 0x01}


@dataclass(frozen=True)
class Jpeg:
    """An RGB or grey JPEG file. fixups, notes: see Converted."""

    data: bytes
    height: int
    width: int
    fixups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        image: Image.Image, quality: int, fixups: tuple[str, ...] = (), notes: tuple[str, ...] = ()
    ) -> "Jpeg":
        """The image as a file."""
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Jpeg(buffer.getvalue(), image.height, image.width, fixups, notes)


def to_rgb_jpeg(data: bytes, verify: Verify) -> Jpeg:
    """The image as a JPEG that every decoder accepts. Raises Reject with the reason.

    verify: "header" parses the frame header (~1 us; misses truncation), "end" also requires the end
    marker (~1 us; misses damage before it), "decode" decodes every pixel (~1 ms)."""
    if data.startswith(PNG_MAGIC):
        return Jpeg.of(decode_image(data, ("JPEG", "PNG")).convert("RGB"), 100, ("png_to_jpeg",))
    height, width, components = frame_header(data)
    check_size(height, width)
    # Some writers append bytes: if the end marker is not at the very end, decode the image to find
    # out.
    if (
        components == 4
        or verify == "decode"
        or (verify == "end" and not data.rstrip(b"\0\r\n").endswith(_END))
    ):
        decode_jpeg(data)
    if components == 4:
        return Jpeg.of(decode_image(data, ("JPEG", "PNG")).convert("RGB"), 100, ("cmyk_to_rgb",))
    return Jpeg(data, height, width)


def frame_header(data: bytes) -> tuple[int, int, int]:
    """(height, width, components) from the SOF segment, the one that libjpeg finds. Raises
    Reject."""
    if not data.startswith(b"\xff\xd8"):
        raise Reject("not a JPEG or PNG file. Convert it to one, or leave it out")
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


def check_size(height: int, width: int) -> None:
    """Raises Reject for an image without pixels, and for a decompression bomb."""
    if not height or not width or height * width > MAX_PIXELS:
        raise Reject(f"{width}x{height} pixels; allowed are 1 to {MAX_PIXELS:,}")


def decode_jpeg(data: bytes) -> np.ndarray:
    """uint8 [height, width, channels]: grey, RGB or CMYK, as in the file. Raises Reject for damage,
    or a size out of bounds. Pillow would accept a file that ends early with an end marker, and fill
    the rest with grey."""
    height, width, components = frame_header(data)
    check_size(height, width)
    try:
        return simplejpeg.decode_jpeg(
            data, colorspace={1: "GRAY", 4: "CMYK"}.get(components, "RGB"), strict=True
        )
    except ValueError as e:
        raise Reject(f"truncated or damaged JPEG: {e}") from None


def decode_image(data: bytes, formats: tuple[str, ...] | None = None) -> Image.Image:
    """All pixels of a file in one of these formats of Pillow's; None: any. Raises Reject."""
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
        check_size(image.height, image.width)
        image.load()
    # its text contains a memory address, and the ledger of every run must be the same
    except UnidentifiedImageError:
        raise Reject("truncated or damaged image: its header cannot be read") from None
    except (
        OSError,
        SyntaxError,
        ValueError,
        RuntimeError,  # of AVIF
        struct.error,
        Image.DecompressionBombError,
    ) as e:
        raise Reject(f"truncated or damaged image: {str(e)[:200]}") from None
    return image
