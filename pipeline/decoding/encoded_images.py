"""Encoded images: their format, size and pixels, from the content.

JPEGs are decoded by libjpeg-turbo, everything else by Pillow. EXIF is ignored, including its
rotation, as in other readers; HEIC is always upright. Transparent pixels keep their colour."""

import contextlib
import io
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import simplejpeg
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pipeline.decoding.op import Size
from pipeline.errors import Reject, SchemaError
from pipeline.raw.jpeg import HEIC, PNG_MAGIC, frame_header, heic_image
from pipeline.raw.jpeg_parts import part_of

Kind = Literal["JPEG", "PNG", "WebP", "HEIC"]
JPEG = b"\xff\xd8\xff"
_SHOWN = 12
_READERS: Mapping[Kind, Callable[[io.BytesIO], ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WebP": WebPImageFile,
    "HEIC": heic_image,
}


class JpegHeader(NamedTuple):
    """size: height and width. plain: whether libjpeg-turbo decodes it to RGB and grey; Pillow
    decodes the others."""

    size: Size
    plain: bool


def jpeg_header(encoded: bytes) -> JpegHeader:
    """SchemaError for a damaged header."""
    # libjpeg's own parser would release the GIL for a microsecond, and wait to get it back
    with contextlib.suppress(Reject):
        height, width, components = frame_header(encoded)
        if height and width and components in (1, 3):
            return JpegHeader((height, width), plain=True)
    try:
        header: Any = simplejpeg.decode_jpeg_header(encoded, strict=False)
        height, width, colours, _ = header
    except (ValueError, KeyError):  # damaged, or a subsampling without a name
        width, height = opened(encoded, "JPEG").size
        return JpegHeader((height, width), plain=False)
    return JpegHeader((height, width), plain=colours not in ("CMYK", "YCCK"))


def jpeg_window(
    encoded: bytes,
    header: JpegHeader,
    window: tuple[int, int, int, int],
    channels: int,
    scale_denom: int,
) -> np.ndarray:
    """uint8 [h, w, channels]: the pixels of the window (y, x, height, width); where libjpeg
    decodes, divided by scale_denom and rounded.

    A JPEG with restart markers is not decoded as a whole. SchemaError for a damaged image, except
    for damage that is not near the window in such a one."""
    top = left = 0
    pixels = None
    if header.plain and (part := part_of(encoded, window)):
        with contextlib.suppress(ValueError):  # decoding the complete image states the reason
            pixels = _turbo_pixels(part.data, part.size, channels, scale_denom)
            top, left = part.top // scale_denom, part.left // scale_denom
    if pixels is None:
        pixels = jpeg_pixels(encoded, header, channels, scale_denom)
        scale_denom = scale_denom if pixels.shape[:2] != header.size else 1
    y, x, h, w = (round(place / scale_denom) for place in window)
    return pixels[y - top : y - top + h, x - left : x - left + w]


def jpeg_pixels(
    encoded: bytes, header: JpegHeader, channels: int, scale_denom: int = 1
) -> np.ndarray:
    """uint8 [*size, channels], with the exact DCT. SchemaError for a damaged image.

    scale_denom: 2, 4 or 8 divide the size, rounded up, except where Pillow decodes."""
    if header.plain:
        # raised for damage, and for what libjpeg only warns of: Pillow tells them apart
        with contextlib.suppress(ValueError):
            return _turbo_pixels(encoded, header.size, channels, scale_denom)
    return pillow_pixels(encoded, "JPEG", header.size, channels)


def _turbo_pixels(encoded: bytes, size: Size, channels: int, scale_denom: int) -> np.ndarray:
    """See jpeg_pixels. Raises ValueError for damage, and for what libjpeg only warns of."""
    height, width = (-(-side // scale_denom) for side in size)
    colours = "GRAY" if channels == 1 else "RGB"
    return simplejpeg.decode_jpeg(encoded, colours, min_height=height, min_width=width)


def png_size(encoded: bytes) -> Size | None:
    """Height and width; None if the data do not begin like a PNG. https://www.w3.org/TR/png-3/"""
    if len(encoded) < 26 or encoded[:16] != PNG_MAGIC + b"\0\0\0\x0dIHDR":
        return None
    width, height = struct.unpack_from(">2i", encoded, 16)  # PNG has no larger sizes than int32
    return height, width


def pillow_pixels(encoded: bytes, kind: Kind, size: Size, channels: int) -> np.ndarray:
    """uint8 [*size, channels]. SchemaError for a damaged image, which includes one of another
    size."""
    image = opened(encoded, kind, size)
    image.info.pop("transparency", None)  # Pillow would warn that RGB has none
    if image.mode.startswith("I"):  # 16 bits of grey
        grey = (np.asarray(image) >> 8).astype(np.uint8)[..., None]
        return grey if channels == 1 else np.repeat(grey, 3, 2)
    return np.asarray(image.convert("RGB" if channels == 3 else "L")).reshape(*size, channels)


def opened(encoded: bytes, kind: Kind, size: Size | None = None) -> ImageFile:
    """The image, with its pixels if its size is stated. SchemaError if it is damaged."""
    try:
        # Image.open would warn of many pixels, which max_pixels allows
        image = _READERS[kind](io.BytesIO(encoded))
        if size:
            if image.size[::-1] != size:
                raise ValueError(f"it has two sizes, {size} and {image.size[::-1]}")
            image.load()
            _READERS[kind](
                io.BytesIO(encoded)
            ).verify()  # loading a PNG does not check the checksums of its pixels
    except (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error) as e:
        other = " DecodeJpeg decodes nothing but JPEG; DecodeResize also decodes PNG, WebP, HEIC."
        raise SchemaError(
            f"the {kind} image is damaged or truncated. Replace it and convert the data again, or "
            f"leave such records out with on_error.{other * (kind == 'JPEG')} The decoder reports: "
            f"{str(e)[:200]}"
        ) from e
    return image


def kind_and_size(encoded: bytes, key: str) -> tuple[Kind, Size]:
    """The format, height and width of an image that is not a JPEG. SchemaError, which states the
    actual format, for other data."""
    kind: Kind = "PNG"
    size = png_size(encoded)
    animated = False
    if encoded[:4] == b"RIFF" and encoded[8:15] == b"WEBPVP8":
        kind = "WebP"
    elif re.match(HEIC, encoded):
        kind = "HEIC"
    if kind != "PNG":
        image = opened(encoded, kind)
        width, height = image.size
        size = height, width
        animated = kind == "WebP" and getattr(image, "is_animated", False)
    if size and min(size) > 0 and not animated:
        return kind, size
    begins = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in encoded[:_SHOWN])
    raise SchemaError(
        f"{key!r} is {'an animated WebP' if animated else 'no intact image'}; it must be a JPEG, a "
        "PNG, a HEIC or a still WebP. Save it as one of these and convert the data again, or leave "
        f"such records out with on_error. It has {len(encoded)} bytes and starts with '{begins}'."
    )
