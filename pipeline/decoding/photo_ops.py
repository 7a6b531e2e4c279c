"""Ops that decode images of any size (JPEG, PNG or WebP, detected from the content) to pixels of one size.

Random windows of an image depend on the record's seed and the image's size only. They are computed in integers and in
float64 with +, -, *, / and square roots, which IEEE 754 defines to the last bit, so they are the same on any machine.
Logarithms, which it does not define, are in a table."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from pipeline.decoding.encoded import decoded_window, pixels_spec
from pipeline.decoding.image_op import ImageOp
from pipeline.decoding.op import Specs
from pipeline.decoding.resizing import Method, check_resizing, flipped, resized
from pipeline.errors import OptionError
from pipeline.spec import ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["DecodeCentralCrop", "DecodeRandomResizedCrop", "DecodeResize"]

MAX_PIXELS = 2**26  # 200 MB as RGB; more than cameras produce
TRIES = 10
_RATIOS = 4096


@dataclass(frozen=True)
class _Photo(ImageOp):
    """Common part of the ops: sets `into` to uint8 [*size, channels], 1 channel (grey) or 3 (RGB).

    Takes JPEG with any subsampling, grey, CMYK or progressive, PNG and WebP. EXIF is ignored, including its rotation.
    Other data, a damaged image or more than max_pixels pixels is an error that names the record. method, antialias: as
    in Resize."""

    key: str = "image/encoded"
    _: KW_ONLY
    into: str = "image"
    size: tuple[int, int] = (224, 224)
    channels: Literal[1, 3] = 3
    method: Method = "bilinear"
    antialias: bool = False
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        check_resizing(self, self.size, self.method, self.antialias)
        if self.channels not in (1, 3):
            raise OptionError(f"{self!r}: channels must be 1 (grey) or 3 (RGB).")

    @property
    def _sets(self) -> str:
        return self.into

    def _spec(self, specs: Specs) -> ArraySpec:
        return pixels_spec(self, self.key, specs, (*self.size, self.channels))

    def _window(self, encoded: Any, window: Callable[[Any], Any]) -> tuple[Any, Any]:
        return decoded_window(encoded, window, self.channels, self.max_pixels, self.key)

    def _resized(self, pixels: Any, size: Any = None) -> Any:
        return resized(pixels, self.size if size is None else size, self.method, self.antialias)


@dataclass(frozen=True, kw_only=True)
class DecodeRandomResizedCrop(_Photo):
    """Decodes a random window of an image and resizes it to `size`: the usual training op. flip: mirrors half of the
    images.

    area: of the window as a fraction of the image's, uniform. ratio: width / height, uniform in its logarithm. If none
    of ten draws fits, takes the largest central window with a ratio within the bounds, like torchvision's
    RandomResizedCrop. For a JPEG, only the window is decoded."""

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.area[0] <= self.area[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"{self!r}: area must be two ascending numbers in (0, 1], ratio two ascending above 0.")

    def _image(self, value: Any, seed: Any, /) -> Any:
        bits = random_bits(seed, 4 * TRIES + 1)
        pixels, _ = self._window(value, lambda size: random_window(size, bits[: 4 * TRIES], self.area, self.ratio))
        image = self._resized(pixels)
        return flipped(image, bits[-1]) if self.flip else image


@dataclass(frozen=True, kw_only=True)
class DecodeCentralCrop(_Photo):
    """Decodes the centre of an image to `size`, a square: the usual evaluation op, in either convention.

    resize_short=256: resizes the shorter side to 256 pixels, then takes the central crop of `size`, like big_vision and
    torchvision. resize_short=None: takes the central square that is size / (size + border) of the shorter side, then
    resizes it, like tensorflow/tpu; for a JPEG, only that square is decoded."""

    resize_short: int | None = None
    border: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size[0] != self.size[1] or self.border < 0:
            raise OptionError(f"{self!r}: size must be a square, and border 0 or more.")
        if self.resize_short is not None and self.resize_short < self.size[0]:
            raise OptionError(f"{self!r}: resize_short must be at least the {self.size[0]} of size.")

    def _image(self, value: Any, _seed: Any, /) -> Any:
        side = self.size[0]
        if self.resize_short is None:
            pixels, _ = self._window(value, lambda size: central_square(size, side, self.border))
            return self._resized(pixels)
        pixels, window = self._window(value, whole)
        small = resized_short(window[2:], self.resize_short)
        y, x = tf.unstack((small - side) // 2)
        return tf.slice(self._resized(pixels, small), [y, x, 0], [side, side, self.channels])


@dataclass(frozen=True, kw_only=True)
class DecodeResize(_Photo):
    """Decodes a complete image and resizes it to `size`.

    fit="stretch": resizes each side separately. fit="pad": keeps the ratio and centres the image; the border is 0."""

    fit: Literal["stretch", "pad"] = "stretch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fit not in ("stretch", "pad"):
            raise OptionError(f"{self!r}: fit must be 'stretch' or 'pad'.")

    def _image(self, value: Any, _seed: Any, /) -> Any:
        pixels, window = self._window(value, whole)
        if self.fit == "stretch":
            return self._resized(pixels)
        target = tf.constant(self.size, tf.float64)
        scale = tf.reduce_min(target / tf.cast(window[2:], tf.float64))
        inner = tf.maximum(tf.cast(tf.round(tf.cast(window[2:], tf.float64) * scale), tf.int32), 1)
        before = (tf.constant(self.size) - inner) // 2
        padding = tf.pad(tf.stack([before, tf.constant(self.size) - inner - before], 1), [[0, 1], [0, 0]])
        return tf.ensure_shape(tf.pad(self._resized(pixels, inner), padding), (*self.size, self.channels))


def random_bits(seed: Any, count: int) -> Any:
    """uint32 [count], uniform: Philox4x32-10 (Salmon et al. 2011) with the seed, int32 [2], as its key."""
    key = tf.bitcast(seed, tf.uint64)[None]
    counter = tf.zeros(2, tf.uint64)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=[count], key=key, counter=counter, alg=1, dtype=tf.uint32)


def random_window(size: Any, bits: Any, area: tuple[float, float], ratio: tuple[float, float]) -> Any:
    """int32 [4], y, x, height, width: the window of a random resized crop, like torchvision's.

    area: of the window as a fraction of the image's, uniform. ratio: width / height, uniform in its logarithm. The
    first of ten draws that fits into the image is placed uniformly; if none fits, the window is the largest central one
    with a ratio within the bounds. size: int32 [2]. bits: uint32 [4 * TRIES]."""
    height, width = tf.unstack(tf.cast(size, tf.float64))
    uniform = tf.reshape(tf.cast(bits, tf.float64) * 2.0**-32, [4, TRIES])
    root = tf.sqrt(height * width * (area[0] + uniform[0] * (area[1] - area[0])))
    side = tf.gather(_roots_of_ratios(ratio), tf.cast(uniform[1] * _RATIOS, tf.int32))
    drawn = tf.stack([tf.round(root / side), tf.round(root * side)])  # [2, TRIES]
    room = tf.stack([height, width])[:, None] - drawn
    fits = tf.reduce_all((room >= 0) & (drawn >= 1), axis=0)
    corner = tf.floor(uniform[2:] * (room + 1))
    first = tf.argmax(tf.cast(fits, tf.int32))  # the first maximum
    placed = tf.gather(tf.concat([corner, drawn], 0), first, axis=1)
    central = _central_within(height, width, ratio)
    return tf.cast(tf.where(tf.reduce_any(fits), placed, central), tf.int32)


def _roots_of_ratios(ratio: tuple[float, float]) -> np.ndarray:
    """Square roots of ratios, uniform in their logarithm: the midpoints of equal intervals, rounded to 24 bits."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    middles = [low + (i + 0.5) / _RATIOS * (high - low) for i in range(_RATIOS)]
    return np.array([round(math.exp(middle / 2) * 2**24) / 2**24 for middle in middles])


def _central_within(height: Any, width: Any, ratio: tuple[float, float]) -> Any:
    h = tf.maximum(tf.minimum(height, tf.round(width / ratio[0])), 1.0)
    w = tf.maximum(tf.minimum(width, tf.round(height * ratio[1])), 1.0)
    return tf.stack([tf.floor((height - h) / 2), tf.floor((width - w) / 2), h, w])


def central_square(size: Any, crop: int, border: int) -> Any:
    """int32 [4]: the central square that is crop / (crop + border) of the shorter side, like tensorflow/tpu."""
    # float32, as in https://github.com/tensorflow/tpu/blob/master/models/official/resnet/resnet_preprocessing.py
    shorter = tf.cast(tf.reduce_min(size), tf.float32)
    side = tf.maximum(tf.cast(np.float32(crop / (crop + border)) * shorter, tf.int32), 1)
    return tf.concat([(size - side + 1) // 2, [side, side]], 0)


def resized_short(size: Any, shorter: int) -> Any:
    """int32 [2]: the size whose shorter side is `shorter`. Keeps the ratio like big_vision, in float32."""
    ratio = tf.cast(shorter, tf.float32) / tf.cast(tf.reduce_min(size), tf.float32)
    return tf.cast(tf.round(tf.cast(size, tf.float32) * ratio), tf.int32)


def whole(size: Any) -> Any:
    """int32 [4]: the complete image."""
    return tf.concat([[0, 0], size], 0)
