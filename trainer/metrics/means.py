"""Weighted means: over tokens, boxes or pixels rather than over records."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import InputError
from trainer.metrics.found import FromBatch, found
from trainer.metrics.sums import float_sum, total_of
from trainer.metrics.tally import LOSSES
from trainer.task import Batch, Computed, Metric

__all__ = ["Mean", "Perplexity"]


@dataclass(frozen=True)
class Mean(Metric):
    """sum(weights * values) / sum(weights) over the split; nan if all weights are 0.

    values, weights: [b, ...] of the same shape, each a key of the batch or a function(outputs, batch). Values of weight
    0 do not count, even NaN. The mean of one value per record needs no Metric, only a function that returns it."""

    values: FromBatch
    weights: FromBatch

    def from_batch(self, outputs: Any, batch: Batch, mask: jax.Array) -> Any:
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

    def from_batch(self, outputs: Any, batch: Batch, mask: jax.Array) -> Any:
        """sum and weight, float32 [2]: see float_sum."""
        return _weighed(self.losses, self.weights, outputs, batch, mask)

    def compute(self, state: Any) -> Computed:
        """The perplexity; inf if it exceeds float64."""
        with np.errstate(over="ignore"):
            return float(np.exp(_mean(state)))


def _weighed(
    values: FromBatch, weights: FromBatch | None, outputs: Any, batch: Batch, mask: jax.Array
) -> dict[str, jax.Array]:
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
