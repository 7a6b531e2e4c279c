"""Ops that decode images of one known size, and the decoding of encoded images: format, size and
pixels from the content.

JPEGs are decoded by libjpeg-turbo, everything else by Pillow. EXIF is ignored, including its
rotation, as in other readers. Transparent pixels keep their colour."""

import contextlib
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import simplejpeg
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pipeline.decoding.op import ImageOp, Size, Specs, spec_of
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, Reject, SchemaError
from pipeline.raw.jpeg import PNG_MAGIC, frame_header, part_of
from pipeline.spec import BYTES, ArraySpec

Kind = Literal["JPEG", "PNG", "WebP"]
JPEG = b"\xff\xd8\xff"
_SHOWN = 12
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour of a PNG; 3: palette
_READERS: Mapping[Kind, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WebP": WebPImageFile,
}


def pixels_spec(op: ImageOp, specs: Specs, shape: tuple[int, int, int]) -> ArraySpec:
    """uint8 with this shape, which `op` decodes from the feature it reads. SchemaError unless that
    is one bytes value."""
    spec = spec_of(op, op.key, specs)
    if spec.dtype != BYTES or spec.shape != ():
        raise SchemaError(
            f"{op!r}: {op.key!r} is {spec.dtype} {spec.shape}; it must be one bytes value."
        )
    return ArraySpec(shape, np.dtype(np.uint8))


class JpegHeader(NamedTuple):
    """size: height and width. plain: whether libjpeg-turbo decodes it to RGB and grey; Pillow
    decodes the others."""

    size: Size
    plain: bool


def jpeg_header(encoded: bytes) -> JpegHeader:
    """SchemaError for a damaged header."""
    # libjpeg's own look would hand over the GIL for a microsecond, and threads wait to get it back
    with contextlib.suppress(Reject):
        height, width, components = frame_header(encoded)
        if height and width and components in (1, 3):
            return JpegHeader((height, width), plain=True)
    try:
        header: Any = simplejpeg.decode_jpeg_header(encoded, strict=False)
        height, width, colours, _ = header
    except (ValueError, KeyError):  # damaged, or a subsampling without a name
        width, height = _opened(encoded, "JPEG").size
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
        with contextlib.suppress(ValueError):  # the whole image tells why
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
        # of damage, and of what libjpeg only warns of: Pillow tells them apart
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
    image = _opened(encoded, kind, size)
    image.info.pop("transparency", None)  # Pillow would warn that RGB has none
    if image.mode.startswith("I"):  # 16 bits of grey
        grey = (np.asarray(image) >> 8).astype(np.uint8)[..., None]
        return grey if channels == 1 else np.repeat(grey, 3, 2)
    return np.asarray(image.convert("RGB" if channels == 3 else "L")).reshape(*size, channels)


def _opened(encoded: bytes, kind: Kind, size: Size | None = None) -> ImageFile:
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
        other = " DecodeJpeg decodes nothing but JPEG; DecodeResize also decodes PNG and WebP."
        raise SchemaError(
            f"the {kind} image is damaged or truncated. Replace it and convert the data again, or "
            f"leave such records out with on_error.{other * (kind == 'JPEG')} The decoder reports: "
            f"{str(e)[:200]}"
        ) from e
    return image


def png_or_webp_size(encoded: bytes, key: str) -> Size:
    """Height and width. SchemaError, which states the actual format, for other data."""
    size = png_size(encoded)
    animated = False
    if encoded[:4] == b"RIFF" and encoded[8:15] == b"WEBPVP8":
        image = _opened(encoded, "WebP")
        (width, height), animated = image.size, getattr(image, "is_animated", False)
        size = height, width
    if size and min(size) > 0 and not animated:
        return size
    begins = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in encoded[:_SHOWN])
    raise SchemaError(
        f"{key!r} is {'an animated WebP' if animated else 'no intact image'}; it must be a JPEG, a "
        "PNG or a still WebP. Save it as one of these and convert the data again, or leave such "
        f"records out with on_error. It has {len(encoded)} bytes and starts with '{begins}'."
    )


@dataclass(frozen=True)
class _Decode(ImageOp):
    key: str
    into: str = "image"
    shape: tuple[int, int, int] = (224, 224, 3)

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, Sequence) else ()
        if len(shape) != 3 or shape[2] not in (1, 3) or min(shape) < 1:
            raise OptionError(
                f"{self!r}: shape must be (height, width, 1) for grey or (height, width, 3) for "
                "RGB."
            )

    def _spec(self, specs: Specs) -> ArraySpec:
        return pixels_spec(self, specs, self.shape)

    def _check_size(self, size: Size | None, what: str) -> None:
        """Raises SchemaError before anything is decoded. what: the wrong value."""
        height, width, _ = self.shape
        if size != (height, width):
            note = f" Its height and width are {size[0]} and {size[1]}." if size else ""
            raise SchemaError(
                f"{self.key!r} is {what} of a size other than the {height} x {width} of {self!r}. "
                "DecodeResize, DecodeCentralCrop and DecodeRandomResizedCrop take images of any "
                f"size.{note}"
            )


class DecodeJpeg(_Decode):
    """Decodes a JPEG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey)
    or 3 (RGB).

    An image of another size is an error that names both sizes and is not decoded, so a small file
    that claims to be huge costs nothing. Uses the exact DCT."""

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        header = jpeg_header(value)
        self._check_size(header.size, "a JPEG")
        return jpeg_pixels(value, header, self.shape[2])


class DecodePng(_Decode):
    """Decodes a PNG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or
    3 (RGB). Exact.

    An image of another size, or that is not a PNG, is an error that names both sizes and is not
    decoded, so a small file that claims to be huge costs nothing."""

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        self._check_size(png_size(value), "not a PNG, or a PNG")
        return pillow_pixels(value, "PNG", self.shape[:2], self.shape[2])


@dataclass(frozen=True)
class DecodeStored(_Decode):
    """Decodes a PNG whose values mean something, such as a mask or depths, to `into`: exactly the
    values stored, [height, width, channels] of `dtype`.

    A palette yields its indices, and grey of 1, 2 or 4 bits what these count, as uint8; grey of 16
    bits is uint16. channels: 1, 2 (with alpha), 3 or 4. An image of another size, number of
    channels or dtype is an error that states both, and is not decoded."""

    shape: tuple[int, int, int] = (224, 224, 1)
    dtype: Literal["uint8", "uint16"] = "uint8"

    def __post_init__(self) -> None:
        channels = {"uint8": 4, "uint16": 1}.get(self.dtype, 0)  # Pillow cuts colours of 16 bits
        if len(self.shape) != 3 or min(self.shape) < 1 or self.shape[2] > channels:
            raise OptionError(
                f"{self!r}: shape must be (height, width, channels), with 1 to 4 channels of dtype "
                "'uint8', or 1 of 'uint16'."
            )

    def _spec(self, specs: Specs) -> ArraySpec:
        return replace(super()._spec(specs), dtype=np.dtype(self.dtype))

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        size = png_size(value) or ()
        depth, colour = value[24:26] if size else (8, 0)
        dtype = "uint16" if depth == 16 else "uint8"
        shape = (*size, _CHANNELS.get(colour, 0))
        if (dtype, shape) != (self.dtype, tuple(self.shape)):
            raise SchemaError(
                f"{self.key!r} is {f'a PNG of {dtype} {shape}' if size else 'not a PNG'}, unlike "
                f"the shape and dtype of {self!r}. State those of the images, or leave such "
                "records out with on_error."
            )
        pixels = np.asarray(_opened(value, "PNG", self.shape[:2]))
        if colour == 0 and 1 < depth < 8:  # Pillow spreads these to 255
            pixels = pixels // (255 // (2**depth - 1))
        return pixels.astype(dtype).reshape(shape)
