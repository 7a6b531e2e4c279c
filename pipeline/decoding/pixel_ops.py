"""Ops for decoded images [height, width, channels]: crops, flips, sizes, channels, and
TrivialAugment in its wide space (https://arxiv.org/abs/2103.10158)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from pipeline.checks import check_choice, check_number
from pipeline.decoding.op import ImageOp, Size, Specs, image_spec
from pipeline.decoding.resizing import (
    Fill,
    Method,
    bordered,
    check_resizing,
    check_size,
    mirrored,
    resized,
)
from pipeline.decoding.rng import Rng
from pipeline.errors import SchemaError
from pipeline.spec import ArraySpec

STRENGTHS = 31


@dataclass(frozen=True)
class RandomShift(ImageOp):
    """Shifts an image by -pixels..pixels whole pixels along each axis; keeps shape and dtype.

    The uncovered border is 0 (fill="zero") or repeats the nearest pixel (fill="edge")."""

    key: str = "image"
    pixels: int = 3
    fill: Fill = "zero"

    def __post_init__(self) -> None:
        check_number(f"{self!r}: pixels", self.pixels, at_least=0)
        check_choice(f"{self!r}: fill", self.fill, get_args(Fill))

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        return _random_crop(value, rng, None, self.pixels, self.fill)


@dataclass(frozen=True)
class RandomCrop(ImageOp):
    """Pads an image with `padding` pixels on each side and takes a random window of `size` (height,
    width).

    size=None keeps the image's size: with padding=4, the usual augmentation for CIFAR. The padding
    is 0 (fill="zero") or repeats the nearest pixel (fill="edge"). All windows are equally likely.
    Keeps the dtype."""

    key: str = "image"
    size: Size | None = None
    padding: int = 4
    fill: Fill = "zero"

    def __post_init__(self) -> None:
        if self.size is not None:
            check_size(self, self.size)
        check_number(f"{self!r}: padding", self.padding, at_least=0)
        check_choice(f"{self!r}: fill", self.fill, get_args(Fill))

    def _spec(self, specs: Specs) -> ArraySpec:
        if self.size is None:
            return image_spec(self, specs)
        return _cropped_spec(self, specs, self.size, self.padding)

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        return _random_crop(value, rng, self.size, self.padding, self.fill)


@dataclass(frozen=True)
class CentralCrop(ImageOp):
    """Takes the central window of `size` (height, width). The smaller half of an odd margin is
    above or left."""

    key: str = "image"
    size: Size = (224, 224)

    def __post_init__(self) -> None:
        check_size(self, self.size)

    def _spec(self, specs: Specs) -> ArraySpec:
        return _cropped_spec(self, specs, self.size)

    def _image(self, value: np.ndarray, _rng: Rng, /) -> np.ndarray:
        (height, width), (h, w) = value.shape[:2], self.size
        y = (height - h) // 2
        x = (width - w) // 2
        return value[y : y + h, x : x + w]


@dataclass(frozen=True)
class RandomFlip(ImageOp):
    """Mirrors half of the images, left to right; keeps shape and dtype."""

    key: str = "image"

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        return mirrored(value) if rng.key[0] & 1 else value


@dataclass(frozen=True)
class Resize(ImageOp):
    """Resizes a uint8 image to `size` (height, width), each side separately, with half-pixel
    centres, and rounds.

    method: "bilinear" or "bicubic". antialias: if images become much smaller; takes twenty times as
    long."""

    key: str = "image"
    size: Size = (224, 224)
    method: Method = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        check_resizing(self, self.size, self.method)

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, specs, only_uint8=True)
        return replace(spec, shape=(*self.size, spec.shape[2]))

    def _image(self, value: np.ndarray, _rng: Rng, /) -> np.ndarray:
        return resized(value, self.size, self.method, self.antialias)


@dataclass(frozen=True)
class GreyToRgb(ImageOp):
    """Repeats the channel of a grey image: [height, width, 3], with the same dtype."""

    key: str = "image"

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, specs)
        if spec.shape[2] != 1:
            remedy = (
                "Leave this op out: the image is already RGB."
                if spec.shape[2] == 3
                else "It must have 1."
            )
            raise SchemaError(f"{self!r}: {self.key!r} has {spec.shape[2]} channels. {remedy}")
        return replace(spec, shape=(*spec.shape[:2], 3))

    def _image(self, value: np.ndarray, _rng: Rng, /) -> np.ndarray:
        return np.broadcast_to(value, (*value.shape[:2], 3))


def _cropped_spec(op: ImageOp, specs: Specs, size: Size, padding: int = 0) -> ArraySpec:
    """The spec of the image that `op` reads, with this size. SchemaError if the padded image is
    smaller."""
    spec = image_spec(op, specs)
    height, width, channels = (side or 0 for side in spec.shape)
    if size[0] > height + 2 * padding or size[1] > width + 2 * padding:
        padded = f" and {padding} pixels of padding on each side" if padding else ""
        raise SchemaError(
            f"{op!r}: {op.key!r} is {height} x {width}{padded}, smaller than the {size[0]} x "
            f"{size[1]} of size. Resize it first, such as with Resize({op.key!r}, size={size}), or "
            "take a smaller size."
        )
    return replace(spec, shape=(*size, channels))


def _random_crop(
    image: np.ndarray, rng: Rng, size: Size | None, padding: int, fill: Fill
) -> np.ndarray:
    """A window of the padded image, [*size, channels], at a position drawn from the key. size: None
    for that of the image."""
    height, width = size or image.shape[:2]
    padded = bordered(image, padding, fill) if padding else image
    # The key is already a hash: its bits are the random numbers, independent of any generator's
    # version.
    y = rng.key[0] % (padded.shape[0] - height + 1)
    x = rng.key[1] % (padded.shape[1] - width + 1)
    return padded[y : y + height, x : x + width]


@dataclass(frozen=True)
class TrivialAugmentWide(ImageOp):
    """Applies one of fourteen augmentations at one of 31 strengths to an image: TrivialAugment
    (Wide).

    All are equally likely: identity, autocontrast, equalize, rotate (to 135 degrees), solarize
    (threshold 256 to 0), colour, contrast, brightness and sharpness (factor 0.01 to 1.99),
    posterize (8 to 2 bits), shear x and y (to 0.99) and translate x and y (to 32 pixels).
    Rotations, shears, translations and factors go in both directions. Pillow makes the pixels: the
    nearest ones, and 0 outside. The image is uint8, grey or RGB, and keeps its shape."""

    key: str = "image"

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, specs, only_uint8=True)
        if (channels := spec.shape[2]) not in (1, 3):
            raise SchemaError(
                f"{self!r}: {self.key!r} has {channels} channels; it must have 1 (grey) or 3 (RGB)."
            )
        return spec

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        return augmented(value, *drawn_from(rng.key))


def drawn_from(key: tuple[int, int]) -> tuple[int, int]:
    """(which, drawn) of `augmented`, each uniform. key: Rng.key."""
    return key[0] % len(NAMES), key[1] % (2 * STRENGTHS)


def augmented(image: np.ndarray, which: int, drawn: int) -> np.ndarray:
    """Applies augmentation NAMES[which]. drawn: the strength, plus STRENGTHS for the other sign."""
    share = drawn % STRENGTHS / (STRENGTHS - 1)
    return _AUGMENTATIONS[NAMES[which]](image, share, share if drawn < STRENGTHS else -share)


Augmentation = Callable[[np.ndarray, float, float], np.ndarray]


def _pillow(change: Callable[[Image.Image, float], Image.Image]) -> Augmentation:
    """An image changed by Pillow, to which it is copied, and back: 50 us for one of 224 pixels.
    change: of a signed share."""

    def augmentation(image: np.ndarray, _: float, signed: float) -> np.ndarray:
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        return np.asarray(change(picture, signed)).reshape(image.shape)

    return augmentation


def _enhanced(kind: Callable[[Image.Image], Any]) -> Augmentation:
    """kind: a class of Pillow's ImageEnhance."""
    return _pillow(lambda picture, signed: kind(picture).enhance(1 + 0.99 * signed))


def _sheared(picture: Image.Image, x: float, y: float) -> Image.Image:
    return picture.transform(
        picture.size, Image.Transform.AFFINE, (1, x, 0, y, 1, 0), Image.Resampling.NEAREST
    )


def _moved(image: np.ndarray, axis: int, by: int) -> np.ndarray:
    """The image moved up (axis 0) or left (axis 1) by `by` pixels, or down or right if negative."""
    result = np.zeros(image.shape, np.uint8)
    to = result.swapaxes(0, axis)
    of = image.swapaxes(0, axis)
    to[max(-by, 0) : max(len(of) - by, 0)] = of[max(by, 0) : max(len(of) + by, 0)]
    return result


# Of an image, the strength as a share of the greatest, and that with its sign. The order determines
# which one a seed draws: another order would change a resumed training run.
_AUGMENTATIONS: dict[str, Augmentation] = {
    "identity": lambda image, _, __: image,
    "autocontrast": _pillow(lambda picture, _: ImageOps.autocontrast(picture)),
    "equalize": _pillow(lambda picture, _: ImageOps.equalize(picture)),
    "rotate": _pillow(lambda picture, signed: picture.rotate(135 * signed)),
    # -1 is 255
    "solarize": lambda image, share, _: image ^ -(image >= 256 - int(256 * share)).view(np.uint8),
    "colour": _enhanced(ImageEnhance.Color),
    # the highest 8 to 2 bits
    "posterize": lambda image, share, _: image & np.uint8(256 - 2 ** round(6 * share)),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "shear_x": _pillow(lambda picture, signed: _sheared(picture, 0.99 * signed, 0)),
    "shear_y": _pillow(lambda picture, signed: _sheared(picture, 0, 0.99 * signed)),
    "translate_x": lambda image, _, signed: _moved(image, 1, int(32 * signed)),
    "translate_y": lambda image, _, signed: _moved(image, 0, int(32 * signed)),
}
NAMES = tuple(_AUGMENTATIONS)
