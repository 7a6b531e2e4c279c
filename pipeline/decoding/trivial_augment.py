"""TrivialAugment in its wide space: https://arxiv.org/abs/2103.10158."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.decoding import tones
from pipeline.decoding.image_op import ImageOp, image_spec
from pipeline.decoding.op import Specs
from pipeline.decoding.tones import MAX_SIDES, Matrix, fixed_point, moved, rotation, warped
from pipeline.errors import SchemaError
from pipeline.spec import ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["NAMES", "STRENGTHS", "TrivialAugmentWide", "augmented", "drawn_from"]

STRENGTHS = 31
_SHARES = np.arange(STRENGTHS) / (STRENGTHS - 1)
_SIGNED = np.concatenate([_SHARES, -_SHARES])  # the drawn value: a strength and a sign
_FACTORS = (1 + 0.99 * _SIGNED).astype(np.float32)
_THRESHOLDS = np.tile(256 - np.floor(256 * _SHARES), 2).astype(np.int32)
_MASKS = np.tile(256 - 2 ** np.round(6 * _SHARES), 2).astype(np.uint8)  # of the highest 8 to 2 bits
_MOST_PIXELS = 32
_PIXELS = np.trunc(_MOST_PIXELS * _SIGNED).astype(np.int32)

Augmentation = Callable[[Any, Any], Any]  # an image and the drawn value, int32 [], to an image


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

    def _image(self, value: Any, seed: Any, /) -> Any:
        return augmented(value, *drawn_from(seed))


def drawn_from(seed: Any) -> tuple[Any, Any]:
    """(which, drawn) of `augmented`, each uniform. seed: int32 [..., 2]."""
    which, drawn = tf.unstack(tf.math.floormod(seed, [len(NAMES), 2 * STRENGTHS]), axis=-1)
    return which, drawn


def augmented(image: Any, which: Any, drawn: Any) -> Any:
    """Applies augmentation NAMES[which]. drawn: the strength, plus STRENGTHS for the other sign. Both int32 []."""
    branches = [lambda change=change: change(image, drawn) for change in _AUGMENTATIONS.values()]
    return tf.ensure_shape(tf.switch_case(which, branches), image.shape)


def _by(change: Augmentation, values: np.ndarray) -> Augmentation:
    return lambda image, drawn: change(image, tf.gather(values, drawn))


def _warp(matrix: Callable[[float, int, int], Matrix]) -> Augmentation:
    def change(image: Any, drawn: Any) -> Any:
        height, width, _ = image.shape
        matrices = [fixed_point(matrix(share, height, width)) for share in _SIGNED]
        return warped(image, tf.gather(np.array(matrices, np.int32), drawn))

    return change


def _translate(axis: int) -> Augmentation:
    return _by(lambda image, by: moved(image, tf.one_hot(axis, 2, by, dtype=tf.int32), _MOST_PIXELS), -_PIXELS)


# The order determines which one a seed draws: another order would change a resumed training run.
_AUGMENTATIONS: dict[str, Augmentation] = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: tones.autocontrast(image),
    "equalize": lambda image, _: tones.equalized(image),
    "rotate": _warp(lambda share, height, width: rotation(135 * share, height, width)),
    "solarize": _by(tones.solarized, _THRESHOLDS),
    "colour": _by(tones.colour, _FACTORS),
    "posterize": _by(tones.posterized, _MASKS),
    "contrast": _by(tones.contrast, _FACTORS),
    "brightness": _by(tones.brightness, _FACTORS),
    "sharpness": _by(tones.sharpness, _FACTORS),
    "shear_x": _warp(lambda share, *_: (1, 0.99 * share, 0, 0, 1, 0)),
    "shear_y": _warp(lambda share, *_: (1, 0, 0, 0.99 * share, 1, 0)),
    "translate_x": _translate(1),
    "translate_y": _translate(0),
}
NAMES = tuple(_AUGMENTATIONS)
