"""Ops for decoded images [height, width, channels]: crops, flips, sizes and channels."""

from dataclasses import dataclass, replace

import numpy as np

from pipeline.decoding.op import ImageOp, Specs, image_spec
from pipeline.decoding.resizing import Fill, Method, bordered, check_resizing, check_size, mirrored, resized
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import ArraySpec


@dataclass(frozen=True)
class RandomShift(ImageOp):
    """Shifts an image by -pixels..pixels whole pixels along each axis; keeps shape and dtype.

    The uncovered border is 0 (fill="zero") or repeats the nearest pixel (fill="edge")."""

    key: str = "image"
    pixels: int = 3
    fill: Fill = "zero"

    def __post_init__(self) -> None:
        if self.pixels < 0 or self.fill not in ("zero", "edge"):
            raise OptionError(f"{self!r}: pixels must be at least 0, and fill 'zero' or 'edge'.")

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        height, width, _ = value.shape
        return _random_crop(value, rng, (height, width), self.pixels, self.fill)


@dataclass(frozen=True)
class RandomCrop(ImageOp):
    """Pads an image with `padding` pixels on each side and takes a random window of `size` (height, width).

    size=None keeps the image's size: with padding=4, the usual augmentation for CIFAR. The padding is 0 (fill="zero")
    or repeats the nearest pixel (fill="edge"). All windows are equally likely. Keeps the dtype."""

    key: str = "image"
    size: tuple[int, int] | None = None
    padding: int = 4
    fill: Fill = "zero"

    def __post_init__(self) -> None:
        if self.size is not None:
            check_size(self, self.size)
        if self.padding < 0 or self.fill not in ("zero", "edge"):
            raise OptionError(f"{self!r}: padding must be at least 0, and fill 'zero' or 'edge'.")

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, self.key, specs)
        return spec if self.size is None else _cropped_spec(self, self.key, spec, self.size, self.padding)

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        height, width, _ = value.shape
        return _random_crop(value, rng, self.size or (height, width), self.padding, self.fill)


@dataclass(frozen=True)
class CentralCrop(ImageOp):
    """Takes the central window of `size` (height, width). The smaller half of an odd margin is above or left."""

    key: str = "image"
    size: tuple[int, int] = (224, 224)

    def __post_init__(self) -> None:
        check_size(self, self.size)

    def _spec(self, specs: Specs) -> ArraySpec:
        return _cropped_spec(self, self.key, image_spec(self, self.key, specs), self.size)

    def _image(self, value: np.ndarray, _rng: Rng, /) -> np.ndarray:
        (height, width), (h, w) = value.shape[:2], self.size
        y, x = (height - h) // 2, (width - w) // 2
        return value[y : y + h, x : x + w]


@dataclass(frozen=True)
class RandomFlip(ImageOp):
    """Mirrors half of the images, left to right; keeps shape and dtype."""

    key: str = "image"

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        return mirrored(value) if rng.key[0] & 1 else value


@dataclass(frozen=True)
class Resize(ImageOp):
    """Resizes a uint8 image to `size` (height, width), each side separately, with half-pixel centres, and rounds.

    method: "bilinear", "bicubic" or "area". antialias: for the first two, if images become much smaller."""

    key: str = "image"
    size: tuple[int, int] = (224, 224)
    method: Method = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        check_resizing(self, self.size, self.method, self.antialias)

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, self.key, specs, only_uint8=True)
        return replace(spec, shape=(*self.size, spec.shape[2]))

    def _image(self, value: np.ndarray, _rng: Rng, /) -> np.ndarray:
        return resized(value, self.size, self.method, self.antialias)


@dataclass(frozen=True)
class GreyToRgb(ImageOp):
    """Repeats the channel of a grey image: [height, width, 3], with the same dtype."""

    key: str = "image"

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, self.key, specs)
        if spec.shape[2] != 1:
            remedy = "Leave this op out: the image is already RGB." if spec.shape[2] == 3 else "It must have 1."
            raise SchemaError(f"{self!r}: {self.key!r} has {spec.shape[2]} channels. {remedy}")
        return replace(spec, shape=(*spec.shape[:2], 3))

    def _image(self, value: np.ndarray, _rng: Rng, /) -> np.ndarray:
        return np.broadcast_to(value, (*value.shape[:2], 3))


def _cropped_spec(op: ImageOp, key: str, spec: ArraySpec, size: tuple[int, int], padding: int = 0) -> ArraySpec:
    """`spec` with this size. SchemaError if the padded image is smaller."""
    height, width, channels = (side or 0 for side in spec.shape)
    if size[0] > height + 2 * padding or size[1] > width + 2 * padding:
        padded = f" and {padding} pixels of padding on each side" if padding else ""
        raise SchemaError(
            f"{op!r}: {key!r} is {height} x {width}{padded}, smaller than the {size[0]} x {size[1]} of size. Resize it "
            f"first, such as with Resize({key!r}, size={size}), or take a smaller size."
        )
    return replace(spec, shape=(*size, channels))


def _random_crop(image: np.ndarray, rng: Rng, size: tuple[int, int], padding: int, fill: Fill) -> np.ndarray:
    """A window of the padded image, [*size, channels], at a position drawn from the key."""
    height, width, _ = image.shape
    # The key is already a hash: its bits are the random numbers, independent of any generator's version.
    y, x = rng.key[0] % (height + 2 * padding - size[0] + 1), rng.key[1] % (width + 2 * padding - size[1] + 1)
    padded = bordered(image, padding, fill) if padding else image
    return padded[y : y + size[0], x : x + size[1]]
