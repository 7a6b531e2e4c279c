"""Weighted means, over tokens, boxes or pixels rather than over records; and how far predicted
numbers are from their targets.

Their sums are exact: pairs of float32 numbers, which the trainer adds up over an epoch without
rounding. An int32 sum overflows at 2**31, such as 2 GiB of text; a float32 sum rounds after 24
bits."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.errors import InputError
from trainer.metrics.labels import FromBatch, FromOutputs, found, found_in_outputs, rows
from trainer.metrics.tally import LOSSES
from trainer.task import Batch, Computed, Metric

__all__ = ["Mean", "Perplexity", "Regression"]

LOW_BITS = 16
_HALF = 2**12 + 1  # Veltkamp's factor: cuts the 24 bits of a float32 in two


def integer_sum(values: Array, counts: Array) -> Array:
    """float32 [2]: the exact sum of `values` where `counts` is True, as whole_of reads it.

    values: int or bool [b, ...] from 0; those of a batch add up to less than 2**40, and there are
    at most 32,768. Sums of an epoch are exact up to 2**53."""
    each = jnp.where(counts, values, 0).astype(jnp.int32)
    high, low = (
        jnp.sum(part, dtype=jnp.int32) for part in (each >> LOW_BITS, each & (2**LOW_BITS - 1))
    )
    carried = high + (low >> LOW_BITS)
    return jnp.stack([carried, low & (2**LOW_BITS - 1)]).astype(jnp.float32)


def whole_of(state: np.ndarray) -> int:
    """The integer that is the sum of integer_sum's results."""
    high, low = (int(part) for part in state)
    return (high << LOW_BITS) + low


def float_sum(values: Array, counts: Array) -> Array:
    """float32 [2]: the sum of `values` where `counts` is True, and its rounding error. Others may
    be NaN.

    values: float [b, ...]. Together they have about 48 bits, so the sum hardly depends on how
    records are batched. Pairwise, with Knuth's TwoSum: rows first, which are on one device each."""
    return pair_sum(values, jnp.zeros_like(values, jnp.float32), counts)


def pair_sum(values: Array, errors: Array, counts: Array) -> Array:
    """float_sum of values + errors. errors: what rounding left out of each value."""
    high, low = (jnp.where(counts, part, 0).astype(jnp.float32) for part in (values, errors))
    while high.ndim:
        while (size := high.shape[-1]) > 1:
            half = (size + 1) // 2
            padding = [(0, 0)] * (high.ndim - 1) + [(0, 2 * half - size)]
            (a, b), (a_low, b_low) = (
                jnp.split(jnp.pad(part, padding), 2, axis=-1) for part in (high, low)
            )
            high = a + b
            back = high - a
            low = a_low + b_low + ((a - (high - back)) + (b - back))
        high = high[..., 0]
        low = low[..., 0]
    return jnp.stack([high, jnp.where(jnp.isfinite(high), low, 0)])


def total_of(state: np.ndarray) -> float:
    """The number that is the sum of float_sum's results."""
    return float(state[0] + state[1]) if np.isfinite(state[0]) else float(state[0])


@dataclass(frozen=True)
class Mean(Metric):
    """sum(weights * values) / sum(weights) over the split; nan if all weights are 0.

    values, weights: [b, ...] of the same shape, each a key of the batch or a function(outputs,
    batch). Values of weight 0 do not count, even NaN. The mean of one value per record needs no
    Metric, only a function that returns it."""

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

    weights: a key of the batch or a function(outputs, batch); None: 1 per record. losses: the same;
    default: the task's losses [b]. If these are means over a record's tokens, give the numbers of
    tokens [b] as weights; for losses per token, [b, tokens], give weights of this shape, 0 on
    padding."""

    weights: FromBatch | None = None
    losses: FromBatch = LOSSES
    better = "min"

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """sum and weight, float32 [2]: see float_sum."""
        return _weighed(self.losses, self.weights, outputs, batch, mask)

    def compute(self, state: Any) -> Computed:
        """The perplexity; inf if it exceeds float64."""
        with np.errstate(over="ignore"):
            return float(np.exp(_mean(state)))


def _weighed(
    values: FromBatch, weights: FromBatch | None, outputs: Any, batch: Batch, mask: Array
) -> dict[str, Array]:
    each = jnp.asarray(found(values, outputs, batch), jnp.float32)
    weight = jnp.ones_like(each)
    if weights is not None:
        weight = jnp.asarray(found(weights, outputs, batch), jnp.float32)
    if each.shape != weight.shape or each.shape[:1] != mask.shape:
        raise InputError(
            f"the values have the shape {list(each.shape)} and the weights {list(weight.shape)}; "
            f"expected equal shapes with {mask.shape[0]} rows, one per record."
        )
    counts = mask.reshape(mask.shape + (1,) * (each.ndim - 1)) & (weight != 0)
    return {"sum": float_sum(weight * each, counts), "weight": float_sum(weight, counts)}


def _mean(state: Any) -> float:
    weight = total_of(state["weight"])
    return total_of(state["sum"]) / weight if weight else math.nan


@dataclass(frozen=True)
class Regression(Metric):
    """mean_absolute_error, rmse, r2 (1 - squared errors / squared deviations of targets),
    correlation (Pearson's).

    nan where undefined, as with constant targets. targets: [b], a key of the batch or a
    function(outputs, batch). predictions: [b], a key of the outputs, a function(outputs, batch), or
    None: the outputs themselves. unit: by which both are divided while they are added up, if sums
    of their squares may exceed float32; a power of two, so that this rounds nothing."""

    targets: FromBatch
    predictions: FromOutputs = None
    unit: float = 1.0
    better: ClassVar = {
        "mean_absolute_error": "min",
        "rmse": "min",
        "r2": "max",
        "correlation": "max",
    }

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """The number of records, and sums of pairs: see integer_sum and pair_sum."""
        targets = found(self.targets, outputs, batch)
        predictions = found_in_outputs(self.predictions, outputs, batch)
        y = rows("targets", targets, batch).astype(jnp.float32) / self.unit
        p = rows("predictions", predictions, batch).astype(jnp.float32) / self.unit
        high = y - p
        back = high - y
        low = (y - (high - back)) - (p + back)  # the rounding error of y - p: Knuth's TwoSum
        square, rest = _product(high, high)
        sign = jnp.where(high < 0, -1, 1)
        pairs = {
            "y": (y, 0 * y),
            "p": (p, 0 * p),
            "error": (sign * high, sign * low),
            "yy": _product(y, y),
            "pp": _product(p, p),
            "yp": _product(y, p),
            "squares": (square, rest + 2 * high * low),
        }
        return {
            "n": integer_sum(mask, mask),
            **{name: pair_sum(*pair, mask) for name, pair in pairs.items()},
        }

    def compute(self, state: Any) -> Computed:
        """The four numbers."""
        n = whole_of(state["n"])
        sums = {name: total_of(state[name]) for name in state if name != "n"}
        if not n or not all(map(math.isfinite, sums.values())):
            return dict.fromkeys(("mean_absolute_error", "rmse", "r2", "correlation"), math.nan)
        exact = {name: Fraction(each) for name, each in sums.items()}
        of_y, of_p, of_both = (
            n * exact[a + b] - exact[a] * exact[b] for a, b in ("yy", "pp", "yp")
        )
        return {
            "mean_absolute_error": sums["error"] / n * self.unit,
            "rmse": math.sqrt(sums["squares"] / n) * self.unit,
            "r2": float(1 - n * exact["squares"] / of_y) if of_y > 0 else math.nan,
            "correlation": float(of_both) / math.sqrt(of_y * of_p)
            if of_y > 0 and of_p > 0
            else math.nan,
        }


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b and its rounding error: Dekker's TwoProduct."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Array) -> tuple[Array, Array]:
    high = _HALF * a - (_HALF * a - a)
    return high, a - high
