"""TrivialAugment in its wide space: https://arxiv.org/abs/2103.10158."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.decoding import tones
from pipeline.decoding.image_op import ImageOp, image_spec
from pipeline.decoding.op import Specs
from pipeline.decoding.rng import Rng
from pipeline.decoding.tones import MAX_SIDES
from pipeline.errors import SchemaError
from pipeline.spec import ArraySpec

__all__ = ["NAMES", "STRENGTHS", "TrivialAugmentWide", "augmented", "drawn_from"]

STRENGTHS = 31
_SHARES = np.arange(STRENGTHS) / (STRENGTHS - 1)
_SIGNED = np.concatenate([_SHARES, -_SHARES])  # the drawn value: a strength and a sign
_FACTORS = (1 + 0.99 * _SIGNED).astype(np.float32)
_THRESHOLDS = np.tile(256 - np.floor(256 * _SHARES), 2).astype(int).tolist()
_MASKS = np.tile(256 - 2 ** np.round(6 * _SHARES), 2).astype(np.uint8)  # of the highest 8 to 2 bits
_PIXELS = np.trunc(-32 * _SIGNED).astype(int).tolist()

Augmentation = Callable[[np.ndarray, int], np.ndarray]  # an image and the drawn value to an image


@dataclass(frozen=True)
class TrivialAugmentWide(ImageOp):
    """Applies one of fourteen augmentations at one of 31 strengths to an image: TrivialAugment (Wide).

    All are equally likely: identity, autocontrast, equalize, rotate (to 135 degrees), solarize (threshold 256 to 0),
    colour, contrast, brightness and sharpness (factor 0.01 to 1.99), posterize (8 to 2 bits), shear x and y (to 0.99)
    and translate x and y (to 32 pixels). Rotations, shears, translations and factors go in both directions. The pixels
    match Pillow's: nearest neighbours, and 0 outside. The image is uint8, grey or RGB, and keeps its shape."""

    key: str = "image"

    def _spec(self, specs: Specs) -> ArraySpec:
        spec = image_spec(self, self.key, specs, only_uint8=True)
        height, width, channels = (side or 0 for side in spec.shape)
        if channels not in (1, 3):
            raise SchemaError(f"{self!r}: {self.key!r} has {channels} channels; it must have 1 (grey) or 3 (RGB).")
        if height + width > MAX_SIDES:
            raise SchemaError(
                f"{self!r}: {self.key!r} is {height} x {width}; height plus width must be at most {MAX_SIDES}. Resize "
                "it first, such as with Resize."
            )
        return spec

    def _image(self, value: np.ndarray, rng: Rng, /) -> np.ndarray:
        return augmented(value, *drawn_from(rng.key))


def drawn_from(key: tuple[int, int]) -> tuple[int, int]:
    """(which, drawn) of `augmented`, each uniform. key: Rng.key."""
    return key[0] % len(NAMES), key[1] % (2 * STRENGTHS)


def augmented(image: np.ndarray, which: int, drawn: int) -> np.ndarray:
    """Applies augmentation NAMES[which]. drawn: the strength, plus STRENGTHS for the other sign."""
    return _AUGMENTATIONS[NAMES[which]](image, drawn)


def _by(change: Callable[[np.ndarray, Any], np.ndarray], values: Sequence[Any] | np.ndarray) -> Augmentation:
    return lambda image, drawn: change(image, values[drawn])


# The order determines which one a seed draws: another order would change a resumed training run.
_AUGMENTATIONS: dict[str, Augmentation] = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: tones.autocontrast(image),
    "equalize": lambda image, _: tones.equalized(image),
    "rotate": _by(tones.rotated, 135 * _SIGNED),
    "solarize": _by(tones.solarized, _THRESHOLDS),
    "colour": _by(tones.colour, _FACTORS),
    "posterize": _by(tones.posterized, _MASKS),
    "contrast": _by(tones.contrast, _FACTORS),
    "brightness": _by(tones.brightness, _FACTORS),
    "sharpness": _by(tones.sharpness, _FACTORS),
    "shear_x": _by(tones.sheared_x, 0.99 * _SIGNED),
    "shear_y": _by(tones.sheared_y, 0.99 * _SIGNED),
    "translate_x": _by(lambda image, by: tones.moved(image, 1, by), _PIXELS),
    "translate_y": _by(lambda image, by: tones.moved(image, 0, by), _PIXELS),
}
NAMES = tuple(_AUGMENTATIONS)
