"""TrivialAugment in its wide space: https://arxiv.org/abs/2103.10158."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from pipeline.decoding.op import ImageOp, Specs, image_spec
from pipeline.decoding.rng import Rng
from pipeline.errors import SchemaError
from pipeline.spec import ArraySpec

STRENGTHS = 31


@dataclass(frozen=True)
class TrivialAugmentWide(ImageOp):
    """Applies one of fourteen augmentations at one of 31 strengths to an image: TrivialAugment (Wide).

    All are equally likely: identity, autocontrast, equalize, rotate (to 135 degrees), solarize (threshold 256 to 0),
    colour, contrast, brightness and sharpness (factor 0.01 to 1.99), posterize (8 to 2 bits), shear x and y (to 0.99)
    and translate x and y (to 32 pixels). Rotations, shears, translations and factors go in both directions. Pillow
    makes the pixels: the nearest ones, and 0 outside. The image is uint8, grey or RGB, and keeps its shape."""

    key: str = "image"

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, self.key, specs, only_uint8=True)
        if (channels := spec.shape[2]) not in (1, 3):
            raise SchemaError(f"{self!r}: {self.key!r} has {channels} channels; it must have 1 (grey) or 3 (RGB).")
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
    """By Pillow, to which an image is copied, and back: 50 us for one of 224 pixels. change: of a signed share."""

    def augmentation(image: np.ndarray, _: float, signed: float) -> np.ndarray:
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        return np.asarray(change(picture, signed)).reshape(image.shape)

    return augmentation


def _sheared(picture: Image.Image, x: float, y: float) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, (1, x, 0, y, 1, 0), Image.Resampling.NEAREST)


def _moved(image: np.ndarray, axis: int, by: int) -> np.ndarray:
    """The image moved up (axis 0) or left (axis 1) by `by` pixels, or down or right if negative."""
    result = np.zeros(image.shape, np.uint8)
    to, of = result.swapaxes(0, axis), image.swapaxes(0, axis)
    to[max(-by, 0) : max(len(of) - by, 0)] = of[max(by, 0) : max(len(of) + by, 0)]
    return result


# Of an image, the strength as a share of the greatest, and that with its sign. The order determines which one a seed
# draws: another order would change a resumed training run.
_AUGMENTATIONS: dict[str, Augmentation] = {
    "identity": lambda image, _, __: image,
    "autocontrast": _pillow(lambda picture, _: ImageOps.autocontrast(picture)),
    "equalize": _pillow(lambda picture, _: ImageOps.equalize(picture)),
    "rotate": _pillow(lambda picture, signed: picture.rotate(135 * signed)),
    "solarize": lambda image, share, _: image ^ -(image >= 256 - int(256 * share)).view(np.uint8),  # -1 is 255
    "colour": _pillow(lambda picture, signed: ImageEnhance.Color(picture).enhance(1 + 0.99 * signed)),
    "posterize": lambda image, share, _: image & np.uint8(256 - 2 ** round(6 * share)),  # the highest 8 to 2 bits
    "contrast": _pillow(lambda picture, signed: ImageEnhance.Contrast(picture).enhance(1 + 0.99 * signed)),
    "brightness": _pillow(lambda picture, signed: ImageEnhance.Brightness(picture).enhance(1 + 0.99 * signed)),
    "sharpness": _pillow(lambda picture, signed: ImageEnhance.Sharpness(picture).enhance(1 + 0.99 * signed)),
    "shear_x": _pillow(lambda picture, signed: _sheared(picture, 0.99 * signed, 0)),
    "shear_y": _pillow(lambda picture, signed: _sheared(picture, 0, 0.99 * signed)),
    "translate_x": lambda image, _, signed: _moved(image, 1, int(32 * signed)),
    "translate_y": lambda image, _, signed: _moved(image, 0, int(32 * signed)),
}
NAMES = tuple(_AUGMENTATIONS)
