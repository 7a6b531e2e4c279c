"""Every augmentation at every strength has the pixels of Pillow, which the published code calls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy.stats import chisquare

from pipeline.decoding.rng import rngs_of
from pipeline.decoding.trivial_augment import NAMES, STRENGTHS, TrivialAugmentWide, augmented, drawn_from

DRAWN = range(2 * STRENGTHS)


def photograph(*shape):
    """Waves, an edge and noise, between 3 and 250."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    waves = [110 + 80 * np.sin(x / (9 + c) + c) * np.cos(y / (11 - c)) + 30 * (x > y) for c in range(shape[2])]
    noisy = np.stack(waves, -1) + np.random.default_rng(0).normal(0, 8, shape)
    return noisy.round().clip(3, 250).astype(np.uint8)


IMAGES = {
    "RGB": photograph(30, 47, 3),
    "square": photograph(32, 32, 3),
    "grey": photograph(29, 41, 1),
    "noise": np.random.default_rng(1).integers(0, 256, (30, 47, 3), np.uint8),
    "one level": np.full((30, 47, 3), 77, np.uint8),
    "two levels": np.where(photograph(30, 47, 3) > 110, 200, 10).astype(np.uint8),
    "one row": photograph(1, 5, 3),
    "one column": photograph(40, 1, 1),
    "a few levels": np.random.default_rng(2).integers(100, 104, (9, 70, 3), np.uint8),
}


def by_pillow(name, image, drawn):
    strength, sign = drawn % STRENGTHS, 1 if drawn < STRENGTHS else -1
    share = sign * strength / 30
    factor = 1 + 0.99 * share
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)

    def affine(*matrix):
        return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)

    augmentations = {
        "identity": lambda: picture,
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "rotate": lambda: picture.rotate(135 * share, Image.Resampling.NEAREST),
        "solarize": lambda: ImageOps.solarize(picture, 256 - int(256 * strength / 30)),
        "colour": lambda: ImageEnhance.Color(picture).enhance(factor),
        "posterize": lambda: ImageOps.posterize(picture, 8 - round(6 * strength / 30)),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        "shear_x": lambda: affine(1, 0.99 * share, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, 0.99 * share, 1, 0),
        "translate_x": lambda: affine(1, 0, int(32 * share), 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, int(32 * share)),
    }
    assert set(augmentations) == set(NAMES)
    return np.asarray(augmentations[name]()).reshape(image.shape)


@pytest.mark.parametrize("content", IMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_every_augmentation_at_every_strength_has_the_pixels_of_pillow(name, content):
    image = IMAGES[content]
    ours = np.stack([augmented(image, NAMES.index(name), drawn) for drawn in DRAWN])
    expected = np.stack([by_pillow(name, image, drawn) for drawn in DRAWN])
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, expected)  # all of them, to the last level


@st.composite
def views(draw):
    """Read-only images of any layout: flipped, transposed, cut out of a larger one."""
    height, width, channels = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.sampled_from([1, 3]))
    low, high = sorted(draw(st.tuples(st.integers(0, 255), st.integers(0, 255))))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    image = rng.integers(low, high, (height + 2, width + 2, 4), np.uint8, endpoint=True)
    view = image[1:-1, 1:-1, :channels]
    image.flags.writeable = view.flags.writeable = False
    return draw(st.sampled_from([view, view[::-1], view[:, ::-1], view.swapaxes(0, 1), view.copy()]))


@settings(deadline=None, max_examples=300)
@given(views(), st.sampled_from(NAMES), st.sampled_from(DRAWN))
def test_an_image_may_have_any_size_and_layout(image, name, drawn):
    expected = by_pillow(name, np.ascontiguousarray(image), drawn)
    np.testing.assert_array_equal(augmented(image, NAMES.index(name), drawn), expected)


def test_a_large_photograph_is_warped_as_pillow_does():
    """Where float32 coordinates would miss a few pixels."""
    image = photograph(331, 500, 3)
    for name in ("rotate", "shear_x", "shear_y"):
        for drawn in (13, 53):
            np.testing.assert_array_equal(augmented(image, NAMES.index(name), drawn), by_pillow(name, image, drawn))


def test_levels_blend_as_pillow_does():
    """Every red with every green: the blend is float32, truncated, so its last bit matters."""
    image = np.stack(np.meshgrid(np.arange(256), np.arange(256), [0]), -1)[:, :, 0].astype(np.uint8)
    for drawn in DRAWN:
        np.testing.assert_array_equal(augmented(image, NAMES.index("colour"), drawn), by_pillow("colour", image, drawn))


def test_augmentations_strengths_and_signs_are_equally_likely():
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, (100_000, 2)).astype(np.int32)
    which, drawn = drawn_from(seeds.T)
    pairs = np.bincount(which * len(DRAWN) + drawn, minlength=len(NAMES) * len(DRAWN))
    assert len(pairs) == len(NAMES) * len(DRAWN)
    for counts in (pairs, np.bincount(which), np.bincount(drawn % STRENGTHS), np.bincount(drawn // STRENGTHS)):
        assert chisquare(counts).pvalue > 1e-3


def test_the_op_is_the_augmentation_that_its_seed_draws():
    image, op = IMAGES["square"], TrivialAugmentWide()
    seeds = np.random.default_rng(2).integers(-(2**31), 2**31, (20, 2)).astype(np.int32)
    for (which, drawn), rng in zip(seeds.tolist(), rngs_of(seeds), strict=True):
        expected = by_pillow(NAMES[which % 14], image, drawn % 62)
        np.testing.assert_array_equal(op({"image": image}, rng)["image"], expected)
