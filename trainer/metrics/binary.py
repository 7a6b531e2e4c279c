"""Metrics of a model that gives one score a record for yes or no."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.shards.errors import EvaluationError, InputError, OptionError
from trainer.config import check_positive_int
from trainer.metrics.classes import share
from trainer.metrics.found import FromBatch, FromOutputs, found, found_in_outputs, rows
from trainer.task import Batch, Computed, Metric

__all__ = ["AUC", "PrecisionRecall"]

MOST_BINS = 2**24


@dataclass(frozen=True)
class PrecisionRecall(Metric):
    """precision, recall and f1 where a record with a score of the threshold or above is taken for a yes.

    nan where nothing can be said: the recall of a split without a yes, the precision where none was predicted, all
    of them for a score that is NaN.
    labels: [b] of 0 and 1 or booleans, a key of the batch or a function(outputs, batch); EvaluationError for others.
    scores: [b], a key of the outputs, a function(outputs, batch), or None: the outputs themselves."""

    labels: FromBatch
    scores: FromOutputs = None
    threshold: float = 0.5

    def from_batch(self, outputs: Any, batch: Batch, mask: jax.Array) -> Any:
        """Counts, int32 []: yes, predicted, right, unscored, strays."""
        scores, yes, no, state = _scored(self.labels, self.scores, outputs, batch, mask)
        above = scores >= self.threshold
        return state | {
            "yes": _count(yes),
            "predicted": _count((yes | no) & above),
            "right": _count(yes & above),
        }

    def compute(self, state: Any) -> Computed:
        """Every value by its name."""
        _check_strays(state)
        yes, predicted, right = (float(state[name]) for name in ("yes", "predicted", "right"))
        values = {"precision": (right, predicted), "recall": (right, yes), "f1": (2 * right, yes + predicted)}
        return {name: math.nan if state["unscored"] else float(share(*value)) for name, value in values.items()}


@dataclass(frozen=True)
class AUC(Metric):
    """roc, the area under the ROC curve, and average_precision, that under the precision-recall curve in steps.

    Scores are counted in `bins` equal parts of low..high, so their resolution is (high - low) / bins; those outside
    are in the first or last. Scores of one bin are ties, so both values are exact where different scores are in
    different bins; else roc is off by roc_error at most, the half of all pairs that share a bin.
    nan for a split with only yes or only no, and for a score that is NaN. labels and scores: as for PrecisionRecall;
    scores are probabilities unless low and high say otherwise: for a logit, scores may be a function that gives
    jax.nn.sigmoid(outputs). Two int32 [bins] on every device."""

    labels: FromBatch
    scores: FromOutputs = None
    bins: int = 16_384
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_positive_int("bins", self.bins)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise OptionError(f"low={self.low} and high={self.high} are not allowed. Both finite, low below high.")
        if self.bins > MOST_BINS:
            raise OptionError(f"bins={self.bins} is not allowed. {MOST_BINS} is the most that float32 tells apart.")

    def from_batch(self, outputs: Any, batch: Batch, mask: jax.Array) -> Any:
        """yes, no int32 [bins]; unscored, strays int32 []."""
        scores, yes, no, state = _scored(self.labels, self.scores, outputs, batch, mask)
        place = jnp.floor((scores - self.low) * (self.bins / (self.high - self.low)))
        # Clipped as a float: beyond int32 a conversion is undefined, as for a NaN.
        bins = jnp.where(yes | no, jnp.clip(place, 0, self.bins - 1), 0).astype(jnp.int32)
        none = jnp.zeros(self.bins, jnp.int32)
        return state | {"yes": none.at[bins].add(yes.astype(jnp.int32)), "no": none.at[bins].add(no.astype(jnp.int32))}

    def compute(self, state: Any) -> Computed:
        """Every value by its name."""
        _check_strays(state)
        # From the highest score down, in integers: each value is one division away from exact.
        yes, no = state["yes"][::-1], state["no"][::-1]
        all_yes, all_no = np.cumsum(yes), np.cumsum(no)
        if state["unscored"] or not all_yes[-1] or not all_no[-1]:
            return {"roc": math.nan, "average_precision": math.nan, "roc_error": math.nan}
        pairs = int(all_yes[-1]) * int(all_no[-1])
        won = 2 * int(np.sum(no * (all_yes - yes))) + int(np.sum(no * yes))
        used = yes > 0
        precision = all_yes[used] / (all_yes[used] + all_no[used])
        return {
            "roc": won / (2 * pairs),
            "average_precision": float(np.sum(yes[used] * precision)) / int(all_yes[-1]),
            "roc_error": int(np.sum(no * yes)) / (2 * pairs),
        }


def _count(which: jax.Array) -> jax.Array:
    return jnp.sum(which, dtype=jnp.int32)


def _scored(
    labels: FromBatch, scores: FromOutputs, outputs: Any, batch: Batch, mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
    """Scores float32 [b]; which rows count as yes and which as no, bool [b]; how many can be neither, and why."""
    values = rows("scores", found_in_outputs(scores, outputs, batch), batch)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise InputError(f"the scores are {values.dtype}; expected floats.")
    own = rows("labels", found(labels, outputs, batch), batch)
    number, known = ~jnp.isnan(values), (own == 0) | (own == 1)
    usable = mask & number & known
    state = {"unscored": _count(mask & ~number), "strays": _count(mask & ~known)}
    return values.astype(jnp.float32), usable & (own == 1), usable & (own == 0), state


def _check_strays(state: Any) -> None:
    if state["strays"]:
        raise EvaluationError(
            f"{state['strays']} records have a label that is neither 0 nor 1. Mask records without a label, or let "
            "labels be a function(outputs, batch) that says which are a yes, such as batch['label'] == 3."
        )
