"""Ops that decode images of any size (JPEG, PNG, WebP or HEIC, detected from the content) to
pixels of one size.

Random windows of an image depend on the record's seed and the image's size only. They are computed
in integers and in float64 with +, -, *, / and square roots, which IEEE 754 defines to the last bit,
so they are the same on any machine. Logarithms, which it does not define, are in a table."""

import functools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from pipeline.checks import check_choice, check_number
from pipeline.decoding.encoded_images import (
    JPEG,
    jpeg_header,
    jpeg_pixels,
    jpeg_window,
    kind_and_size,
    pillow_pixels,
)
from pipeline.decoding.image_ops import pixels_spec
from pipeline.decoding.op import ImageOp, Size, Specs
from pipeline.decoding.resizing import Method, check_resizing, mirrored, resized
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.raw.image_files import orientation, turned
from pipeline.spec import ArraySpec

Window = tuple[int, int, int, int]  # y, x, height, width
Bounds = tuple[float, float]
MAX_PIXELS = 2**26  # 200 MB as RGB; more than cameras produce
TRIES = 10
_RATIOS = 4096


@dataclass(frozen=True)
class _Photo(ImageOp):
    """Common part of the ops: sets `into` to uint8 [*size, channels], 1 channel (grey) or 3 (RGB).

    Takes JPEG with any subsampling, grey, CMYK or progressive, PNG, WebP, and HEIC, which is
    always upright. Other data, a damaged image or more than max_pixels pixels is an error that
    names the record. method, antialias: as in Resize. scaled: a JPEG is decoded at a half, a
    quarter or an eighth of its size, if what is cut out remains twice as large as the target; a
    photograph of 12 megapixels takes a fifth of the time, and fine detail is averaged instead of
    skipped. upright: turns a JPEG by the orientation in its EXIF, which is ignored otherwise."""

    key: str = "image/encoded"
    _: KW_ONLY
    into: str = "image"
    size: Size = (224, 224)
    channels: Literal[1, 3] = 3
    method: Method = "bilinear"
    antialias: bool = False
    max_pixels: int = MAX_PIXELS
    scaled: bool = False
    upright: bool = False

    def __post_init__(self) -> None:
        check_resizing(self, self.size, self.method)
        check_choice(f"{self!r}: channels", self.channels, (1, 3))

    def _spec(self, specs: Specs) -> ArraySpec:
        return pixels_spec(self, specs, (*self.size, self.channels))

    def _window(
        self,
        encoded: bytes,
        window: Callable[[int, int], Window],
        target: Size | None = None,
    ) -> np.ndarray:
        """uint8 [h, w, channels]: the pixels of the window that `window` returns for the height and
        width of the image.

        target: the size to which they will be resized; None for `size`. If `scaled`, a JPEG is
        decoded so small that the window still has twice that size, so rounding the window to whole
        pixels moves it by half of one. SchemaError, with the remedy, for other data, for too many
        pixels, and for a damaged image."""
        header = jpeg_header(encoded) if encoded.startswith(JPEG) else None
        kind, size = ("JPEG", header.size) if header else kind_and_size(encoded, self.key)
        height, width = size
        if height * width > self.max_pixels:  # before anything is decoded
            raise SchemaError(
                f"{self.key!r} has more pixels than max_pixels={self.max_pixels}. Give the op a "
                "larger max_pixels, or convert the data again with --max-side. Its height and "
                f"width are {height} and {width}."
            )
        exif = orientation(encoded) if self.upright and header else 1
        y, x, h, w = place = window(*size[::-1] if exif > 4 else size)
        if header and exif != 1:
            return turned(jpeg_pixels(encoded, header, self.channels), exif)[y : y + h, x : x + w]
        if header:
            least_h, least_w = target or self.size
            fits = [n for n in (2, 4, 8) if h >= 2 * n * least_h and w >= 2 * n * least_w]
            scale_denom = max(fits, default=1) if self.scaled else 1
            return jpeg_window(encoded, header, place, self.channels, scale_denom)
        pixels = pillow_pixels(encoded, kind, size, self.channels)
        return pixels[y : y + h, x : x + w]

    def _resized(self, pixels: np.ndarray, size: Size | None = None) -> np.ndarray:
        return resized(pixels, self.size if size is None else size, self.method, self.antialias)


@dataclass(frozen=True, kw_only=True)
class DecodeRandomResizedCrop(_Photo):
    """Decodes a random window of an image and resizes it to `size`: the usual training op. flip:
    mirrors half of the images.

    area: of the window as a fraction of the image's, uniform. ratio: width / height, uniform in its
    logarithm. If none of ten draws fits, takes the largest central window with a ratio within the
    bounds, like torchvision's RandomResizedCrop."""

    area: Bounds = (0.08, 1.0)
    ratio: Bounds = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.area[0] <= self.area[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(
                f"{self!r}: area must be two ascending numbers in (0, 1], ratio two ascending "
                "above 0."
            )

    def _image(self, value: bytes, rng: Rng, /) -> np.ndarray:
        bits = rng.bits(4 * TRIES + 1)
        pixels = self._window(
            value, lambda h, w: random_window(h, w, bits[:-1], self.area, self.ratio)
        )
        image = self._resized(pixels)
        return mirrored(image) if self.flip and bits[-1] & 1 else image


@dataclass(frozen=True, kw_only=True)
class DecodeCentralCrop(_Photo):
    """Decodes the centre of an image to `size`, a square: the usual evaluation op, in either
    convention.

    resize_short=256: resizes the shorter side to 256 pixels, to an image of at most max_pixels,
    then takes the central crop of `size`, like big_vision and torchvision. resize_short=None: takes
    the central square that is size / (size + border) of the shorter side, then resizes it, like
    tensorflow/tpu."""

    resize_short: int | None = None
    border: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size[0] != self.size[1]:
            raise OptionError(f"{self!r}: size must be a square.")
        check_number(f"{self!r}: border", self.border, at_least=0)
        check_number(
            f"{self!r}: resize_short",
            self.resize_short,
            at_least=self.size[0],
            more=", that of size",
        )

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        side = self.size[0]
        if self.resize_short is None:
            return self._resized(
                self._window(value, lambda h, w: central_square(h, w, side, self.border))
            )
        pixels = self._window(value, full_image, (self.resize_short, self.resize_short))
        height, width = resized_short(pixels.shape[0], pixels.shape[1], self.resize_short)
        if height * width > self.max_pixels:
            raise SchemaError(
                f"{self.key!r} has more pixels than max_pixels={self.max_pixels} once its shorter "
                f"side is {self.resize_short}. Give the op a larger max_pixels, or leave such "
                f"records out with on_error. Its height and width would be {height} and {width}."
            )
        y = (height - side) // 2
        x = (width - side) // 2
        return self._resized(pixels, (height, width))[y : y + side, x : x + side]


@dataclass(frozen=True, kw_only=True)
class DecodeResize(_Photo):
    """Decodes a complete image and resizes it to `size`.

    fit="stretch": resizes each side separately. fit="pad": keeps the ratio and centres the image;
    the border is 0."""

    fit: Literal["stretch", "pad"] = "stretch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{self!r}: fit", self.fit, ("stretch", "pad"))

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        pixels = self._window(value, full_image)
        if self.fit == "stretch":
            return self._resized(pixels)
        scale = min(target / side for target, side in zip(self.size, pixels.shape, strict=False))
        height, width = (max(round(side * scale), 1) for side in pixels.shape[:2])
        y = (self.size[0] - height) // 2
        x = (self.size[1] - width) // 2
        image = np.zeros((*self.size, self.channels), np.uint8)
        image[y : y + height, x : x + width] = self._resized(pixels, (height, width))
        return image


def random_window(height: int, width: int, bits: np.ndarray, area: Bounds, ratio: Bounds) -> Window:
    """The window of a random resized crop, like torchvision's.

    area: of the window as a fraction of the image's, uniform. ratio: width / height, uniform in its
    logarithm. The first of ten draws that fits into the image is placed uniformly; if none fits,
    the window is the largest central one with a ratio within the bounds. bits: uint32 [4 *
    TRIES]."""
    uniform = (bits * 2.0**-32).reshape(4, TRIES).tolist()
    roots = _roots_of_ratios(ratio)
    for of_area, of_ratio, of_y, of_x in zip(*uniform, strict=True):
        root = math.sqrt(height * width * (area[0] + of_area * (area[1] - area[0])))
        side = roots[int(of_ratio * _RATIOS)]
        h = round(root / side)
        w = round(root * side)
        if 1 <= h <= height and 1 <= w <= width:
            return math.floor(of_y * (height - h + 1)), math.floor(of_x * (width - w + 1)), h, w
    h = max(min(height, round(width / ratio[0])), 1)
    w = max(min(width, round(height * ratio[1])), 1)
    return (height - h) // 2, (width - w) // 2, h, w


@functools.cache
def _roots_of_ratios(ratio: Bounds) -> list[float]:
    """Square roots of ratios, uniform in their logarithm: the midpoints of equal intervals, rounded
    to 24 bits."""
    low = math.log(ratio[0])
    high = math.log(ratio[1])
    middles = [low + (i + 0.5) / _RATIOS * (high - low) for i in range(_RATIOS)]
    return [round(math.exp(middle / 2) * 2**24) / 2**24 for middle in middles]


def central_square(height: int, width: int, crop: int, border: int) -> Window:
    """The central square that is crop / (crop + border) of the shorter side, like
    tensorflow/tpu."""
    # float32, as in
    # https://github.com/tensorflow/tpu/blob/master/models/official/resnet/resnet_preprocessing.py
    side = max(int(np.float32(crop / (crop + border)) * np.float32(min(height, width))), 1)
    return (height - side + 1) // 2, (width - side + 1) // 2, side, side


def resized_short(height: int, width: int, shorter: int) -> Size:
    """The size whose shorter side is `shorter`. Keeps the ratio like big_vision, in float32."""
    ratio = np.float32(shorter) / np.float32(min(height, width))
    return round(float(np.float32(height) * ratio)), round(float(np.float32(width) * ratio))


def full_image(height: int, width: int) -> Window:
    """The complete image."""
    return 0, 0, height, width
