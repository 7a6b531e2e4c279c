"""TrivialAugment in its wide space: https://arxiv.org/abs/2103.10158."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from pipeline.decoding.image_op import ImageOp, image_spec
from pipeline.decoding.op import Specs
from pipeline.decoding.rng import Rng
from pipeline.errors import SchemaError
from pipeline.spec import ArraySpec

__all__ = ["NAMES", "STRENGTHS", "TrivialAugmentWide", "augmented", "drawn_from"]

STRENGTHS = 31
Picture = Image.Image


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
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    changed = _AUGMENTATIONS[NAMES[which]](picture, share, share if drawn < STRENGTHS else -share)
    return np.asarray(changed).reshape(image.shape)


def _affine(picture: Picture, *matrix: float) -> Picture:
    """A pixel (x, y) is that at (a x + b y + c, d x + e y + f) of the picture."""
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


# Of a picture, the strength as a share of the greatest, and that with its sign. The order determines which one a seed
# draws: another order would change a resumed training run.
_AUGMENTATIONS: dict[str, Callable[[Picture, float, float], Picture]] = {
    "identity": lambda picture, _, __: picture,
    "autocontrast": lambda picture, _, __: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _, __: ImageOps.equalize(picture),
    "rotate": lambda picture, _, signed: picture.rotate(135 * signed),
    "solarize": lambda picture, share, _: ImageOps.solarize(picture, 256 - int(256 * share)),
    "colour": lambda picture, _, signed: ImageEnhance.Color(picture).enhance(1 + 0.99 * signed),
    "posterize": lambda picture, share, _: ImageOps.posterize(picture, 8 - round(6 * share)),
    "contrast": lambda picture, _, signed: ImageEnhance.Contrast(picture).enhance(1 + 0.99 * signed),
    "brightness": lambda picture, _, signed: ImageEnhance.Brightness(picture).enhance(1 + 0.99 * signed),
    "sharpness": lambda picture, _, signed: ImageEnhance.Sharpness(picture).enhance(1 + 0.99 * signed),
    "shear_x": lambda picture, _, signed: _affine(picture, 1, 0.99 * signed, 0, 0, 1, 0),
    "shear_y": lambda picture, _, signed: _affine(picture, 1, 0, 0, 0.99 * signed, 1, 0),
    "translate_x": lambda picture, _, signed: _affine(picture, 1, 0, int(32 * signed), 0, 1, 0),
    "translate_y": lambda picture, _, signed: _affine(picture, 1, 0, 0, 0, 1, int(32 * signed)),
}
NAMES = tuple(_AUGMENTATIONS)
