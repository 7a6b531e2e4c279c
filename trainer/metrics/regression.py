"""How far predicted numbers are from their targets: sums over the records of a split, in pairs of float32 numbers."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
from jax import Array

from trainer.metrics.labels import FromBatch, FromOutputs, found, found_in_outputs, rows
from trainer.metrics.means import integer_sum, pair_sum, total_of, whole_of
from trainer.task import Batch, Computed, Metric

__all__ = ["Regression"]

_HALF = 2**12 + 1  # Veltkamp's factor: cuts the 24 bits of a float32 in two


@dataclass(frozen=True)
class Regression(Metric):
    """mean_absolute_error, rmse, r2 (1 - squared errors / squared deviations of targets), correlation (Pearson's).

    nan where undefined, as with constant targets. targets: [b], a key of the batch or a function(outputs, batch).
    predictions: [b], a key of the outputs, a function(outputs, batch), or None: the outputs themselves."""

    targets: FromBatch
    predictions: FromOutputs = None

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """The number of records, and sums of pairs: see integer_sum and pair_sum."""
        y = rows("targets", found(self.targets, outputs, batch), batch).astype(jnp.float32)
        p = rows("predictions", found_in_outputs(self.predictions, outputs, batch), batch).astype(jnp.float32)
        high = y - p
        back = high - y
        low = (y - (high - back)) - (p + back)  # the rounding error of y - p: Knuth's TwoSum
        square, rest = _product(high, high)
        sign = jnp.where(high < 0, -1, 1)
        pairs: dict[str, tuple[Any, Any]] = {"y": (y, 0 * y), "p": (p, 0 * p), "error": (sign * high, sign * low)}
        pairs |= {"yy": _product(y, y), "pp": _product(p, p), "yp": _product(y, p)}
        pairs["squares"] = square, rest + 2 * high * low
        return {"n": integer_sum(mask, mask), **{name: pair_sum(*pair, mask) for name, pair in pairs.items()}}

    def compute(self, state: Any) -> Computed:
        """The four numbers."""
        n, sums = whole_of(state["n"]), {name: total_of(state[name]) for name in state if name != "n"}
        if not n or not all(map(math.isfinite, sums.values())):
            return dict.fromkeys(("mean_absolute_error", "rmse", "r2", "correlation"), math.nan)
        exact = {name: Fraction(each) for name, each in sums.items()}
        of_y, of_p, of_both = (n * exact[a + b] - exact[a] * exact[b] for a, b in ("yy", "pp", "yp"))
        return {
            "mean_absolute_error": sums["error"] / n,
            "rmse": math.sqrt(sums["squares"] / n),
            "r2": float(1 - n * exact["squares"] / of_y) if of_y > 0 else math.nan,
            "correlation": float(of_both) / math.sqrt(of_y * of_p) if of_y > 0 and of_p > 0 else math.nan,
        }


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b and its rounding error: Dekker's TwoProduct."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Array) -> tuple[Array, Array]:
    high = _HALF * a - (_HALF * a - a)
    return high, a - high
