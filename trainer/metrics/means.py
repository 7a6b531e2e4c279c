"""Weighted means: over tokens, boxes or pixels rather than over records.

Their sums are exact: pairs of float32 numbers, which the trainer adds up over an epoch without rounding. An int32 sum
overflows at 2**31, such as 2 GiB of text; a float32 sum rounds after 24 bits."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.errors import InputError
from trainer.metrics.labels import FromBatch, found
from trainer.metrics.tally import LOSSES
from trainer.task import Batch, Computed, Metric

__all__ = ["Mean", "Perplexity"]

LOW_BITS = 16


def integer_sum(values: Array, counts: Array) -> Array:
    """float32 [2]: the exact sum of `values` where `counts` is True, as whole_of reads it.

    values: int or bool [b, ...] from 0; those of a batch add up to less than 2**40, and there are at most 32,768. Sums
    of an epoch are exact up to 2**53."""
    each = jnp.where(counts, values, 0).astype(jnp.int32)
    high, low = (jnp.sum(part, dtype=jnp.int32) for part in (each >> LOW_BITS, each & (2**LOW_BITS - 1)))
    carried = high + (low >> LOW_BITS)
    return jnp.stack([carried, low & (2**LOW_BITS - 1)]).astype(jnp.float32)


def whole_of(state: np.ndarray) -> int:
    """The integer that is the sum of integer_sum's results."""
    high, low = (int(part) for part in state)
    return (high << LOW_BITS) + low


def float_sum(values: Array, counts: Array) -> Array:
    """float32 [2]: the sum of `values` where `counts` is True, and its rounding error. Others may be NaN.

    values: float [b, ...]. Together they have about 48 bits, so the sum hardly depends on how records are batched.
    Pairwise, with Knuth's TwoSum: rows first, which are on one device each."""
    return pair_sum(values, jnp.zeros_like(values, jnp.float32), counts)


def pair_sum(values: Array, errors: Array, counts: Array) -> Array:
    """float_sum of values + errors. errors: what rounding left out of each value."""
    high, low = (jnp.where(counts, part, 0).astype(jnp.float32) for part in (values, errors))
    while high.ndim:
        high, low = _last_axis_sum(high, low)
    return jnp.stack([high, jnp.where(jnp.isfinite(high), low, 0)])


def total_of(state: np.ndarray) -> float:
    """The number that is the sum of float_sum's results."""
    return float(state[0] + state[1]) if np.isfinite(state[0]) else float(state[0])


def _last_axis_sum(high: Any, low: Any) -> tuple[Any, Any]:
    while (size := high.shape[-1]) > 1:
        half = (size + 1) // 2
        added = [(0, 0)] * (high.ndim - 1) + [(0, 2 * half - size)]
        (a, b), (a_low, b_low) = (jnp.split(jnp.pad(part, added), 2, axis=-1) for part in (high, low))
        high = a + b
        back = high - a
        low = a_low + b_low + ((a - (high - back)) + (b - back))
    return high[..., 0], low[..., 0]


@dataclass(frozen=True)
class Mean(Metric):
    """sum(weights * values) / sum(weights) over the split; nan if all weights are 0.

    values, weights: [b, ...] of the same shape, each a key of the batch or a function(outputs, batch). Values of weight
    0 do not count, even NaN. The mean of one value per record needs no Metric, only a function that returns it."""

    values: FromBatch
    weights: FromBatch

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """sum and weight, float32 [2]: see float_sum."""
        return _weighed(self.values, self.weights, outputs, batch, mask)

    def compute(self, state: Any) -> Computed:
        """The mean."""
        return _mean(state)


@dataclass(frozen=True)
class Perplexity(Metric):
    """exp of the mean loss, in nats: sum(weights * losses) / sum(weights).

    weights: a key of the batch or a function(outputs, batch); None: 1 per record. losses: the same; default: the task's
    losses [b]. If these are means over a record's tokens, give the numbers of tokens [b] as weights; for losses per
    token, [b, tokens], give weights of this shape, 0 on padding."""

    weights: FromBatch | None = None
    losses: FromBatch = LOSSES

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """sum and weight, float32 [2]: see float_sum."""
        return _weighed(self.losses, self.weights, outputs, batch, mask)

    def compute(self, state: Any) -> Computed:
        """The perplexity; inf if it exceeds float64."""
        with np.errstate(over="ignore"):
            return float(np.exp(_mean(state)))


def _weighed(values: FromBatch, weights: FromBatch | None, outputs: Any, batch: Batch, mask: Array) -> dict[str, Array]:
    each = jnp.asarray(found(values, outputs, batch), jnp.float32)
    weight = jnp.ones_like(each) if weights is None else jnp.asarray(found(weights, outputs, batch), jnp.float32)
    if each.shape != weight.shape or each.shape[:1] != mask.shape:
        raise InputError(
            f"the values have the shape {list(each.shape)} and the weights {list(weight.shape)}; expected equal "
            f"shapes with {mask.shape[0]} rows, one per record."
        )
    counts = mask.reshape(mask.shape + (1,) * (each.ndim - 1)) & (weight != 0)
    return {"sum": float_sum(weight * each, counts), "weight": float_sum(weight, counts)}


def _mean(state: Any) -> float:
    weight = total_of(state["weight"])
    return total_of(state["sum"]) / weight if weight else math.nan
