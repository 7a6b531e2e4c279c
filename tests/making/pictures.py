"""Small pictures in every format that is decoded."""

import io
from typing import Any

import numpy as np
import pillow_heif
from PIL import Image

__all__ = ["FORMATS", "encoded", "heic", "picture", "rotated", "transparent"]


def picture(width: int = 120, height: int = 80, mode: str = "RGB") -> Image.Image:
    """Smooth, as photographs are, with an edge."""
    y, x = np.mgrid[:height, :width]
    waves = [
        127 + 90 * np.sin(x / (9 + c) + c) * np.cos(y / (11 - c)) + 20 * (x > y) for c in range(3)
    ]
    return Image.fromarray(np.stack(waves, -1).round().astype(np.uint8)).convert(mode)


def transparent(width: int = 120, height: int = 80) -> Image.Image:
    """The picture as RGBA, the more transparent the further to the left; the rest has its colour all the same."""
    image = picture(width, height, "RGBA")
    image.putalpha(
        Image.fromarray(np.tile(np.linspace(1, 255, width).astype(np.uint8), (height, 1)))
    )
    return image


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """A file of it."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def rotated(orientation: int, endian: str = "<") -> bytes:
    """A JPEG whose EXIF, in this byte order, states how to turn it."""
    exif = Image.Exif()
    exif.endian = endian
    exif[0x0112] = orientation
    return encoded(picture(), quality=95, exif=exif)


def heic(*images: Image.Image, orientation: int = 1) -> bytes:
    """A file of these pictures, as an iPhone writes it: it states how to turn them. The last one is the main one.

    Pillow's plug-in is not registered, as in a program of infeed's."""
    file = pillow_heif.HeifFile()
    for image in images:
        exif = Image.Exif()
        exif[0x0112] = orientation
        file.add_from_pillow(image).info["exif"] = exif.tobytes()
    buffer = io.BytesIO()
    file.save(buffer, quality=90, primary_index=len(images) - 1)
    return buffer.getvalue()


FORMATS = {  # how far its decoder may be from Pillow's, in levels
    "JPEG 4:4:4": (encoded(picture(), quality=95, subsampling=0), 1),
    "JPEG 4:2:0": (encoded(picture(), quality=95, subsampling=2), 1),
    "grey JPEG": (encoded(picture(mode="L"), quality=95), 1),
    "CMYK JPEG": (encoded(picture(mode="CMYK"), quality=95), 2),
    "progressive JPEG": (encoded(picture(), quality=95, progressive=True), 1),
    "PNG": (encoded(picture(), "PNG"), 0),
    "grey PNG": (encoded(picture(mode="L"), "PNG"), 0),
    "palette PNG": (encoded(picture(mode="P"), "PNG"), 0),
    "lossless WebP": (encoded(picture(), "WEBP", lossless=True), 0),
    "lossy WebP": (encoded(picture(), "WEBP", quality=90), 1),
    "PNG with alpha": (encoded(transparent(), "PNG"), 0),
    "lossless WebP with alpha": (encoded(transparent(), "WEBP", lossless=True), 0),
    "lossy WebP with alpha": (encoded(transparent(), "WEBP", quality=90), 1),
}
