"""Random erasing: as many, as large, and where the paper says."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pipeline.errors import OptionError
from trainer.augment import random_erasing


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
    assert stats.kstest(area, stats.uniform(0.02, 1 / 3 - 0.02).cdf).statistic < 0.06  # whole pixels, and sides cut
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


def test_invalid_erasing_options_are_refused(make_batch):
    with pytest.raises(OptionError, match=r"probability=1.5, area=\(0.02, 0.3333"):
        random_erasing(make_batch(), probability=1.5)
    with pytest.raises(OptionError, match=r"area two ascending numbers in \(0, 1\]"):
        random_erasing(make_batch(), area=(0.5, 0.1))
