"""Every augmentation at every strength has the pixels of Pillow, which the published code calls."""

import functools

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy.stats import chisquare

from pipeline.decoding.trivial_augment import NAMES, STRENGTHS, augmented, drawn_from
from pipeline.ops import TrivialAugmentWide
from pipeline.tf_cpu import tf

DRAWN = np.arange(2 * STRENGTHS, dtype=np.int32)


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
    "tiny": photograph(1, 5, 3),
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


@functools.lru_cache
def every_strength(shape):
    """A graph that makes [62, *shape] of an image and an augmentation's number: one for all tests of a shape."""

    def of(image, which):
        def one(drawn):
            return augmented(image, which, drawn)

        return tf.map_fn(one, DRAWN, fn_output_signature=tf.TensorSpec(shape, tf.uint8))

    signature = [tf.TensorSpec(shape, tf.uint8), tf.TensorSpec((), tf.int32)]
    return tf.function(of, input_signature=signature, autograph=False)


@pytest.mark.parametrize("content", IMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_every_augmentation_at_every_strength_has_the_pixels_of_pillow(name, content):
    image = IMAGES[content]
    ours = every_strength(image.shape)(image, NAMES.index(name)).numpy()
    expected = np.stack([by_pillow(name, image, drawn) for drawn in DRAWN])
    np.testing.assert_array_equal(ours, expected)  # all of them, to the last level


def test_a_large_photograph_is_warped_as_pillow_does():
    """Where float32 coordinates would miss a few pixels."""
    image = photograph(331, 500, 3)
    for name in ("rotate", "shear_x", "shear_y"):
        for drawn in (13, 53):
            ours = augmented(tf.constant(image), tf.constant(NAMES.index(name)), tf.constant(drawn))
            np.testing.assert_array_equal(ours, by_pillow(name, image, drawn))


def test_augmentations_strengths_and_signs_are_equally_likely():
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, (100_000, 2)).astype(np.int32)
    which, drawn = (each.numpy() for each in drawn_from(seeds))
    pairs = np.bincount(which * len(DRAWN) + drawn, minlength=len(NAMES) * len(DRAWN))
    assert len(pairs) == len(NAMES) * len(DRAWN)
    for counts in (pairs, np.bincount(which), np.bincount(drawn % STRENGTHS), np.bincount(drawn // STRENGTHS)):
        assert chisquare(counts).pvalue > 1e-3


def test_the_op_is_the_augmentation_that_its_seed_draws():
    image, op = tf.constant(IMAGES["square"]), TrivialAugmentWide()
    for seed in np.random.default_rng(2).integers(-(2**31), 2**31, (20, 2)).astype(np.int32):
        expected = by_pillow(NAMES[int(seed[0]) % 14], IMAGES["square"], int(seed[1]) % 62)
        np.testing.assert_array_equal(op({"image": image}, tf.constant(seed))["image"], expected)
