"""Masked sums and means: rows that do not count have no influence at all."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import OptionError
from trainer.metrics.tally import blank_padding, due_crc, masked_mean, masked_sum, num_rows

MASK = jnp.array([1.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("padding", [0.0, np.nan, np.inf, -1e38])
def test_padding_does_not_reach_a_sum_or_a_mean(padding):
    values = jnp.array([1.0, padding, 4.0, padding])
    assert float(masked_sum(values, MASK)) == 5.0
    assert float(masked_mean(values, MASK)) == 2.5
    batch = blank_padding({"x": values, "_mask": MASK})
    assert batch["x"].tolist() == [1, 0, 4, 0]


@pytest.mark.parametrize(
    ("dtype", "nan", "largest"),
    [
        (jnp.float32, np.nan, np.finfo(np.float32).max),
        (jnp.bfloat16, np.nan, float(jnp.finfo(jnp.bfloat16).max)),
        (jnp.int32, 0, 2**31 - 1),
        (jnp.uint8, 0, 255),
        (jnp.bool_, False, True),
    ],
)
def test_a_check_may_fill_the_padding_of_every_type_with_other_values(dtype, nan, largest):
    batch = {"a": {"b": jnp.ones((4, 2), dtype)}, "_mask": MASK, "_index": jnp.arange(4)}
    for padding, value in enumerate([0, nan, largest]):
        filled = jax.jit(blank_padding)(batch, padding)
        assert filled["a"]["b"].dtype == dtype
        expected = np.array([[1, 1], [value, value]] * 2).astype(dtype)
        assert np.asarray(filled["a"]["b"]).tobytes() == expected.tobytes()
        assert filled["_index"].tolist() == [0, 1, 2, 3]


def test_a_gradient_is_finite_where_the_padding_is_not():
    def loss(w, x):
        batch = blank_padding({"x": x, "_mask": MASK})
        return masked_mean(jnp.square(w * batch["x"]), batch["_mask"])

    gradient = jax.grad(loss)(3.0, jnp.array([1.0, jnp.nan, 2.0, jnp.nan]))
    assert float(gradient) == 15.0


def test_a_mean_over_no_row_is_zero():
    assert float(masked_mean(jnp.array([jnp.nan, 2.0]), jnp.zeros(2))) == 0.0


@pytest.mark.parametrize("name", ["loss", "grad_norm", "_mask"])
def test_a_metric_cannot_take_a_name_of_the_trainer(dense_task, name):
    with pytest.raises(
        OptionError, match=f"a metric is named '{name}'. loss, grad_norm, step, .* and names that start with _"
    ):
        replace(dense_task, metrics={name: lambda outputs, batch: outputs})


def test_booleans_are_counted():
    assert float(masked_sum(jnp.array([True, True, True, False]), MASK)) == 2.0


def test_the_crc_sum_wraps_at_32_bits_and_skips_padding():
    crcs = np.array([2**32 - 1, 17, 3, 99], np.uint32)
    batch = {"_crc": jnp.asarray(crcs), "_mask": MASK}
    assert int(due_crc(batch)) == 2
    assert int(due_crc({"_mask": MASK})) == 0
    assert int(num_rows(batch["_mask"])) == 2
