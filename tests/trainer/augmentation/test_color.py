"""Jitter and normalization against Pillow and the formulas; erasing as many, as large and where the paper says."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy import stats

from trainer.augment import color_jitter, normalize, random_erasing, uniform

ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}


@pytest.mark.parametrize("name", ENHANCERS)
def test_each_color_change_equals_that_of_pillow(make_batch, name):
    batch = make_batch()
    drawn = uniform(batch, "color_jitter", 3)[:, list(ENHANCERS).index(name)]
    changed = color_jitter(batch, **{name: 0.8})["image"]
    for image, u, ours in zip(batch["image"], drawn, changed, strict=True):
        factor = 0.2 + float(u) * 1.6
        pillows = np.asarray(
            ENHANCERS[name](Image.fromarray(np.asarray(image))).enhance(factor), np.float32
        )
        # Pillow rounds the grey that it blends with, and cuts the result.
        assert np.abs(np.asarray(ours) - pillows).max() <= 2.0


def test_factors_are_uniform_around_one_and_never_negative(make_batch):
    flat = make_batch(2000, 1, 1) | {"image": jnp.full((2000, 1, 1, 1), 100, jnp.uint8)}
    for amount, low, high in ((0.4, 60, 140), (1.5, 0, 250)):
        levels = np.asarray(color_jitter(flat, brightness=amount)["image"]).ravel()
        assert low <= levels.min() < low + 2
        assert high - 2 < levels.max() <= high
        assert abs(levels.mean() - (low + high) / 2) < 6


def test_color_jitter_without_options_changes_only_the_dtype(make_batch):
    batch = make_batch()
    same = color_jitter(batch)
    assert same["image"].dtype == jnp.float32
    assert (same["image"] == batch["image"]).all()
    assert all((same[key] == batch[key]).all() for key in batch)


@pytest.mark.parametrize(("name", "mean", "deviation"), [("inception", 0.5, 0.5), ("unit", 0, 1)])
def test_normalization_is_the_formula(make_batch, name, mean, deviation):
    images = make_batch()["image"]
    expected = (np.asarray(images, np.float64) / 255 - mean) / deviation
    np.testing.assert_allclose(normalize(images, name), expected, atol=1e-6)
    assert normalize(images, name, jnp.bfloat16).dtype == jnp.bfloat16


def test_imagenets_statistics_are_of_each_channel(make_batch):
    images = make_batch()["image"]
    expected = (np.asarray(images, np.float64) / 255 - [0.485, 0.456, 0.406]) / [
        0.229,
        0.224,
        0.225,
    ]
    np.testing.assert_allclose(normalize(images), expected, atol=1e-5)
    own = normalize(images, ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    assert (own == normalize(images, "imagenet")).all()


def erased(batch, **options):
    """bool [b, h, w]: which pixels were set."""
    white = batch | {"image": jnp.full_like(batch["image"], 255)}
    return np.asarray(jax.jit(partial(random_erasing, **options))(white)["image"])[..., 0] == 0


def test_a_rectangle_of_the_area_and_ratio_asked_for_is_set(make_batch):
    pixels = erased(make_batch(2000, 40, 40, 1), probability=1.0)
    rows, columns = pixels.any(2), pixels.any(1)
    height, width = rows.sum(1), columns.sum(1)
    assert (pixels == rows[:, :, None] & columns[:, None, :]).all()
    for along in (rows, columns):  # in one piece
        assert (np.abs(np.diff(along.astype(int), axis=1, prepend=0, append=0)).sum(1) == 2).all()
    area = height * width / 1600
    assert area.min() > 0.015
    assert area.max() < 0.35
    # whole pixels, and sides cut
    assert stats.kstest(area, stats.uniform(0.02, 1 / 3 - 0.02).cdf).statistic < 0.06
    assert abs(np.log(height / width).mean()) < 0.05


def test_the_rectangle_lies_anywhere_and_reaches_every_border(make_batch):
    pixels = erased(make_batch(2000, 8, 6, 1), probability=1.0, area=(0.08, 0.1), ratio=(0.9, 1.1))
    tops, lefts = pixels.any(2).argmax(1), pixels.any(1).argmax(1)
    assert np.bincount(tops, minlength=7).min() > 200
    assert np.bincount(lefts, minlength=5).min() > 300
    assert pixels.reshape(2000, -1).any(0).all()


def test_the_share_of_erased_images_is_the_probability_and_the_dtype_is_kept(make_batch):
    batch = make_batch(2000, 4, 4, 1)
    assert abs(erased(batch, probability=0.25).any((1, 2)).mean() - 0.25) < 0.04
    assert not erased(batch, probability=0.0).any()
    assert random_erasing(batch, value=7)["image"].dtype == batch["image"].dtype
