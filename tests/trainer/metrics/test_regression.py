"""Regression metrics are scikit-learn's in float64, although the device adds float32 numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk

from trainer.metrics.regression import Regression
from trainer.metrics.tally import computed, counted, empty_tallies

METRICS = {"r": Regression("y")}
BATCH = 64


def found(y, p, mask):
    """Over the rows of the mask, in batches, as an evaluation counts them."""
    batches = [
        ({"y": jnp.array(y[at : at + BATCH]), "_mask": jnp.array(mask[at : at + BATCH])}, jnp.array(p[at : at + BATCH]))
        for at in range(0, len(y), BATCH)
    ]
    losses = jnp.zeros(BATCH)
    tallies, _ = empty_tallies(losses, batches[0][1], batches[0][0], METRICS)
    step = jax.jit(lambda tallies, outputs, batch: counted(tallies, losses, outputs, batch, METRICS))
    for batch, outputs in batches:
        tallies = step(tallies, outputs, batch)
    return {name.removeprefix("r/"): value for name, value in computed(jax.device_get(tallies), METRICS)[0].items()}


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (150, 77), (1e-3, 1e-3), (1e6, 1e6)])
def test_the_numbers_are_those_of_scikit_learn(offset, scale):
    rng = np.random.default_rng(0)
    y = (offset + scale * rng.normal(size=2048)).astype(np.float32)
    p = (y + scale * rng.normal(size=2048) / 2).astype(np.float32)
    mask = (np.arange(2048) % 7 > 0).astype(np.float32)
    mine = found(y, np.where(mask, p, np.nan).astype(np.float32), mask)
    y, p = (each[mask > 0].astype(np.float64) for each in (y, p))
    expected = {
        "mean_absolute_error": sk.mean_absolute_error(y, p),
        "rmse": sk.root_mean_squared_error(y, p),
        "r2": sk.r2_score(y, p),
        "correlation": np.corrcoef(y, p)[0, 1],
    }
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        assert mine[name] == pytest.approx(value, rel=1e-12), name


def test_what_is_undefined_is_nan():
    constant, ones = np.full(BATCH, 3, np.float32), np.ones(BATCH, np.float32)
    assert found(constant, constant + 1, ones)["rmse"] == 1
    assert math.isnan(found(constant, constant + 1, ones)["r2"])
    assert all(map(math.isnan, found(constant, constant, 0 * ones).values()))
    assert all(map(math.isnan, found(constant, constant * np.float32("nan"), ones).values()))
