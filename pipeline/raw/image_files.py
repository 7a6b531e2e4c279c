"""Image files as JPEGs that every reader decodes, optionally turned upright and scaled down; or
lossless ones as PNGs of the same pixels, which may be labels.

Readers of tensorflow/tpu's schema, including ours, decode only JPEGs and take the size from their
headers. Formats are recognized by content, never by name."""

import contextlib
import io
import itertools
import re
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image, features

from pipeline.errors import Reject
from pipeline.raw.jpeg import (
    HEIC,
    NOT_RESTARTED,
    PNG_MAGIC,
    Jpeg,
    Verify,
    check_size,
    decode_image,
    decode_jpeg,
    to_rgb_jpeg,
)
from pipeline.raw.jpeg_parts import SCAN, segments

ORIENTATION = 0x0112  # https://exiftool.org/TagNames/EXIF.html
_APP1, _SHORT = 0xE1, 3
_EXIF = b"Exif\0\0"
# by EXIF orientation: whether to swap the sides, and then to mirror each of them
TURNS = np.array([0, 0, 1, 3, 2, 4, 5, 7, 6])[:, None] >> [2, 1, 0] & 1
_MAX_JPEG_SIDE = 65_500  # libjpeg's own limit
_ANIMATION = "an animation, not one image"
_NOT_TURNED = (
    "an EXIF rotation was not applied, and most readers ignore it; --apply-orientation turns such "
    "images upright"
)
# what Pillow raises for damaged EXIF
_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, struct.error)

ENCODED_AGAIN = (".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif")
"""The suffixes of the formats other than JPEG."""
_BEGINNINGS = {
    "JPEG": b"\xff\xd8",
    "PNG": PNG_MAGIC,
    "WEBP": b"RIFF....WEBP",
    "GIF": b"GIF8[79]a",
    "BMP": b"BM",
    "TIFF": b"II[*+]\0|MM\0[*+]",
    "AVIF": b"....ftyp.{0,28}avi[fs]",
    "HEIF": HEIC,
}
_FIRST_FRAMES = {
    "GIF": "only the first frame of an animated GIF was taken",
    "TIFF": "only the first page of a TIFF of several was taken",
    "HEIF": "only the main picture of a HEIC file of several was taken",
}
NOTES = (_NOT_TURNED, *_FIRST_FRAMES.values(), NOT_RESTARTED)
CUT = "values of more than 8 bits were cut to 8, because a JPEG holds no more"
"""NOTES and CUT are all that is noted of an image, see Converted."""
# per value, by Pillow's mode: what both Pillow and a PNG hold as stored
_BITS = {"1": 1, "L": 8, "LA": 8, "RGB": 8, "RGBA": 8, "I;16": 16, "I;16B": 16}
_BITS_PER_SAMPLE = 258  # of TIFF
_BIT_DEPTH = 24  # where a PNG has it


@dataclass(frozen=True)
class ToJpeg:
    """Converts image files. By default RGB and grey JPEGs stay as they are, byte for byte.

    verify: see to_rgb_jpeg; images to encode again are always decoded completely and strictly.
    max_side: pixels; larger images are scaled down.
    apply_orientation: rotates the pixels according to EXIF.
    quality: of JPEGs encoded here.
    restart_markers: see Jpeg.restarted."""

    verify: Verify = "end"
    max_side: int | None = None
    apply_orientation: bool = False
    quality: int = 95
    restart_markers: bool = False

    def core_seconds_per_gb(self, name: str) -> float:
        """How long one core takes for 1 GB of such images, measured on some of 65 KB; 0 to copy
        them."""
        if self.max_side:
            return 60
        if self.restart_markers:
            return 40
        return 13 if self.verify == "decode" or name.lower().endswith(ENCODED_AGAIN) else 0

    def __call__(self, data: bytes) -> Jpeg:
        """The JPEG, with its fixups in the order they were made. Raises Reject, OptionError."""
        image = self._jpeg(data)
        return image.restarted() if self.restart_markers else image

    def _jpeg(self, data: bytes) -> Jpeg:
        form = _format(data)
        if form == "JPEG":
            return self._from_jpeg(data)
        image = _decoded(data, form)
        turn = _turn(image)
        opaque, fixups = _opaque(image)
        notes = self._notes(turn)
        if form in _FIRST_FRAMES and _is_animated(image):
            fixups = (*fixups, "first_frame_only")
            notes = (*notes, _FIRST_FRAMES[form])
        if (data[_BIT_DEPTH] if form == "PNG" else _tiff_bits(image, 8)) > 8:
            notes = (*notes, CUT)
        return self._encoded(opaque, turn, (f"{form.lower()}_to_jpeg", *fixups), notes)

    def stored(self, data: bytes) -> tuple[bytes, tuple[str, ...]]:
        """A PNG byte for byte, a PNG of the values in another lossless image, and the JPEG of any
        other; and some of NOTES. Raises Reject, also for a lossless image that the options would
        change; OptionError."""
        form = _format(data)
        # whichever is first in a WebP, VP8 or VP8L, holds its pixels
        lossy = form == "WEBP" and re.findall(b"VP8[ L]", data)[:1] == [b"VP8 "]
        if lossy or form in ("JPEG", "AVIF", "HEIF"):
            image = self(data)
            return image.data, image.notes
        image = _decoded(data, form)
        turn = _turn(image)
        if _is_animated(image):
            raise Reject(
                f"a {form} of several frames or pages; a PNG holds only one. Give --columns "
                "COLUMN=file to keep the file, or --image-format=jpeg for the first one"
            )
        if self._fitting(image.size) != image.size or (self.apply_orientation and turn > 1):
            raise Reject(
                f"a {form} of {image.width}x{image.height} pixels, which --max-side or "
                "--apply-orientation would change, but lossless images keep their pixels. Give "
                "--image-format=jpeg, or change the file"
            )
        stored = _checked_png(data) if form == "PNG" else _png_of(image, form)
        return stored, self._notes(turn)

    def _from_jpeg(self, data: bytes) -> Jpeg:
        image = to_rgb_jpeg(data, self.verify)
        # From the raw file: a repaired CMYK image has lost its EXIF.
        turn = _turn_of_jpeg(data) if self.apply_orientation else 1
        notes = self._notes(orientation(data))
        size = (image.width, image.height)
        if turn == 1 and self._fitting(size) == size:
            return replace(image, notes=notes)
        pixels = decode_jpeg(image.data)
        grey = pixels.shape[2] == 1
        return self._encoded(
            Image.fromarray(pixels[:, :, 0] if grey else pixels), turn, image.fixups, notes
        )

    def _notes(self, turn: int) -> tuple[str, ...]:
        return (_NOT_TURNED,) if turn > 1 and not self.apply_orientation else ()

    def _encoded(
        self,
        image: Image.Image,
        turn: int,
        fixups: tuple[str, ...],
        notes: tuple[str, ...],
    ) -> Jpeg:
        if turn > 1 and self.apply_orientation:
            image = Image.fromarray(turned(np.asarray(image), turn))
            fixups = (*fixups, "turned_upright")
        size = self._fitting(image.size)
        if size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
            fixups = (*fixups, "scaled_down")
        if max(image.size) > _MAX_JPEG_SIDE:
            raise Reject(
                f"{image.width}x{image.height} pixels; a JPEG has at most {_MAX_JPEG_SIDE:,} per "
                "side"
            )
        return Jpeg.of(image, self.quality, fixups, notes)

    def _fitting(self, size: tuple[int, int]) -> tuple[int, int]:
        longer = max(size)
        if self.max_side is None or longer <= self.max_side:
            return size
        width, height = (max(1, round(side * self.max_side / longer)) for side in size)
        return width, height


def _format(data: bytes) -> str:
    """Pillow's name of it. Raises Reject."""
    for form, beginning in _BEGINNINGS.items():
        if re.match(beginning, data, re.DOTALL):
            return form
    raise Reject("not a JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC file")


def _decoded(data: bytes, form: str) -> Image.Image:
    """All pixels of a file that is not a JPEG. Raises Reject."""
    if form == "AVIF" and not features.check("avif"):
        raise Reject("an AVIF file, which this Pillow cannot read; Pillow 11.3 or newer can")
    if form in ("PNG", "WEBP", "GIF"):
        check_size(*_size(data, form))  # before Pillow allocates anything
    image = decode_image(data, (form,))
    if form not in _FIRST_FRAMES and getattr(image, "n_frames", 1) > 1:
        raise Reject(_ANIMATION)
    return image


def _checked_png(data: bytes) -> bytes:
    """The PNG. Raises Reject if a checksum does not match: decoding does not check those of the
    pixels."""
    try:
        Image.open(io.BytesIO(data), formats=("PNG",)).verify()
    except _DAMAGED as e:
        raise Reject(f"truncated or damaged PNG: {str(e)[:200]}") from None
    return data


def _png_of(image: Image.Image, form: str) -> bytes:
    """A PNG of exactly these values. Raises Reject if a PNG of Pillow's cannot hold them."""
    allowed = _BITS.get(image.mode)
    bits = _tiff_bits(image, allowed)
    if image.mode != "P" and bits != allowed:
        raise Reject(
            f"a {form} of mode {image.mode} with {bits} bits per value, which a PNG would change; "
            "allowed are 1 or 8 bits, 16 bits of grey, and palettes. Give --columns COLUMN=file to "
            "keep the file, or --image-format=jpeg"
        )
    buffer = io.BytesIO()
    image.save(buffer, "PNG", bits=8)  # also for a short palette, which indices may exceed
    return buffer.getvalue()


def _tiff_bits(image: Image.Image, of_others: int | None):
    return max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, [of_others]))


def _size(data: bytes, form: str) -> tuple[int, int]:
    """(height, width) from the header of a PNG or WebP, or the canvas of a GIF.

    https://www.w3.org/Graphics/GIF/spec-gif89a.txt"""
    if form == "WEBP":
        return _webp_size(data)
    layout, offset = (">II", 16) if form == "PNG" else ("<HH", 6)
    try:
        width, height = struct.unpack_from(layout, data, offset)
    except struct.error:
        raise Reject(f"truncated {form}: no header in its {len(data)} bytes") from None
    return height, width


def _webp_size(data: bytes) -> tuple[int, int]:
    """https://developers.google.com/speed/webp/docs/riff_container. Pillow would allocate the
    canvas first."""
    if len(data) < 30:
        raise Reject(f"truncated WebP: no header in its {len(data)} bytes")
    if data[12:16] == b"VP8X":
        if data[20] & 2:
            raise Reject(_ANIMATION)
        return int.from_bytes(data[27:30], "little") + 1, int.from_bytes(data[24:27], "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return height & 0x3FFF, width & 0x3FFF


def _is_animated(image: Image.Image) -> bool:
    """Whether there is a second frame. Seeks to it, so the first must be decoded already."""
    try:
        return getattr(image, "is_animated", False)
    except (OSError, SyntaxError, ValueError, IndexError, struct.error):  # damaged after the first
        return True


def orientation(jpeg: bytes) -> int:
    """The EXIF orientation, read without decoding: 1 to 8; 1 (upright) also if EXIF is missing or
    damaged.

    Runs on every JPEG, although few are rotated: it takes 5 us, Pillow 66 us."""
    places = segments(jpeg) if jpeg.startswith(b"\xff\xd8") else ()
    with contextlib.suppress(IndexError, struct.error):
        for marker, at in itertools.takewhile(lambda each: each[0] != SCAN, places):
            if marker == _APP1 and jpeg.startswith(_EXIF, at + 2):
                (length,) = struct.unpack_from(">H", jpeg, at)
                return _in_tiff(jpeg[at + 2 + len(_EXIF) : at + length])
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


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels [h, w, ...] of an image with this EXIF orientation, upright."""
    swaps, mirrors_down, mirrors_right = TURNS[orientation]
    pixels = pixels.swapaxes(0, 1) if swaps else pixels
    return pixels[:: 1 - 2 * mirrors_down, :: 1 - 2 * mirrors_right]


def _turn_of_jpeg(data: bytes) -> int:
    try:
        return _turn(Image.open(io.BytesIO(data), formats=("JPEG",)))
    except _DAMAGED:
        return 1


def _turn(image: Image.Image) -> int:
    """The EXIF orientation; 1 (upright) also if EXIF is missing or damaged."""
    try:
        value: Any = image.getexif().get(ORIENTATION)
        return int(value) if value in range(1, 9) else 1
    except _DAMAGED:
        return 1


def _opaque(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """The image in grey or RGB, on white: the colours of transparent pixels are arbitrary. Raises
    Reject."""
    if image.mode in ("I", "F"):  # of TIFF
        raise Reject("32-bit values, which a JPEG cannot hold; save them with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion clips at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)), ()
    mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(white, rgba).convert(mode), ("alpha_on_white",)
    return image.convert(mode), ()
