"""Ops that decode photographs of any size to pixels of one size: JPEG, PNG and WebP, told by their content."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from pipeline.decoding.encoded import decoded_window, pixels_spec
from pipeline.decoding.image_op import ImageOp
from pipeline.decoding.op import Specs
from pipeline.decoding.resizing import Method, check_resizing, flipped, resized
from pipeline.decoding.windows import TRIES, central_square, random_bits, random_window, resized_short, whole
from pipeline.shards.errors import OptionError
from pipeline.spec import ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["DecodeCentralCrop", "DecodeRandomResizedCrop", "DecodeResize"]

MAX_PIXELS = 2**26  # 200 MB as RGB; cameras are below


@dataclass(frozen=True)
class _Photo(ImageOp):
    """What the three share: sets `into` to uint8 [*size, channels], 1 channel (grey) or 3 (RGB).

    JPEG of any subsampling, grey, CMYK or progressive, PNG and WebP. EXIF is ignored, its rotation too. A record with
    anything else, with a damaged image or with more than max_pixels is an error that names it."""

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

    def _image(self, value: Any, seed: Any) -> Any:
        return tf.ensure_shape(self._photo(value, seed), (*self.size, self.channels))

    def _photo(self, encoded: Any, seed: Any) -> Any:
        raise NotImplementedError

    def _window(self, encoded: Any, window: Callable[[Any], Any]) -> tuple[Any, Any]:
        return decoded_window(encoded, window, self.channels, self.max_pixels, self.key)

    def _resized(self, pixels: Any, size: Any = None) -> Any:
        return resized(pixels, self.size if size is None else size, self.method, self.antialias)


@dataclass(frozen=True, kw_only=True)
class DecodeRandomResizedCrop(_Photo):
    """Decodes a random window of an image, resizes it to `size` and flips half of them: the usual training op.

    area: of the window, as a part of the image's, uniform. ratio: width over height, uniform in its logarithm. Ten
    draws, then the largest central window with a ratio within those bounds, as torchvision's RandomResizedCrop. Of a
    JPEG only the window is decoded."""

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.area[0] <= self.area[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"{self!r}: area must be two ascending numbers in (0, 1], ratio two ascending above 0.")

    def _photo(self, encoded: Any, seed: Any) -> Any:
        bits = random_bits(seed, 4 * TRIES + 1)
        pixels, _ = self._window(encoded, lambda size: random_window(size, bits[: 4 * TRIES], self.area, self.ratio))
        image = self._resized(pixels)
        return flipped(image, bits[-1]) if self.flip else image


@dataclass(frozen=True, kw_only=True)
class DecodeCentralCrop(_Photo):
    """Decodes the centre of an image to `size`, a square: the usual op of an evaluation, in either convention.

    resize_short=256: the shorter side is resized to 256 pixels, then the central crop of `size` is taken, as
    big_vision and torchvision do. resize_short=None: the central square that is size / (size + border) of the shorter
    side is taken, then resized, as tensorflow/tpu does; of a JPEG only that square is decoded."""

    resize_short: int | None = None
    border: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size[0] != self.size[1] or self.border < 0:
            raise OptionError(f"{self!r}: size must be a square, and border 0 or more.")
        if self.resize_short is not None and self.resize_short < self.size[0]:
            raise OptionError(f"{self!r}: resize_short must be at least the {self.size[0]} of size.")

    def _photo(self, encoded: Any, seed: Any) -> Any:
        del seed
        side = self.size[0]
        if self.resize_short is None:
            pixels, _ = self._window(encoded, lambda size: central_square(size, side, self.border))
            return self._resized(pixels)
        pixels, window = self._window(encoded, whole)
        small = resized_short(window[2:], self.resize_short)
        y, x = tf.unstack((small - side) // 2)
        return tf.slice(self._resized(pixels, small), [y, x, 0], [side, side, self.channels])


@dataclass(frozen=True, kw_only=True)
class DecodeResize(_Photo):
    """Decodes a whole image and resizes it to `size`.

    fit="stretch": each side for itself. fit="pad": the image keeps its ratio and is centred; what is left is 0."""

    fit: Literal["stretch", "pad"] = "stretch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fit not in ("stretch", "pad"):
            raise OptionError(f"{self!r}: fit must be 'stretch' or 'pad'.")

    def _photo(self, encoded: Any, seed: Any) -> Any:
        del seed
        pixels, window = self._window(encoded, whole)
        if self.fit == "stretch":
            return self._resized(pixels)
        target = tf.constant(self.size, tf.float64)
        scale = tf.reduce_min(target / tf.cast(window[2:], tf.float64))
        inner = tf.maximum(tf.cast(tf.round(tf.cast(window[2:], tf.float64) * scale), tf.int32), 1)
        before = (tf.constant(self.size) - inner) // 2
        padding = tf.pad(tf.stack([before, tf.constant(self.size) - inner - before], 1), [[0, 1], [0, 0]])
        return tf.pad(self._resized(pixels, inner), padding)
