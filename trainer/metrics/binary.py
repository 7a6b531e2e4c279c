"""Metrics of binary classifiers, which return one score per record."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.checks import check_number, check_positive_int
from pipeline.errors import InputError, OptionError
from trainer.metrics.classes import share
from trainer.metrics.labels import FromBatch, FromOutputs, found, found_in_outputs, rows
from trainer.task import Batch, Computed, Metric

__all__ = ["AUC", "PrecisionRecall"]

MOST_BINS = 2**24


@dataclass(frozen=True)
class _Binary:
    labels: FromBatch
    scores: FromOutputs = None

    def _scored(
        self, outputs: Any, batch: Batch, mask: Array
    ) -> tuple[Array, Array, Array, dict[str, Array]]:
        """Scores float32 [b]; the positive and the negative rows, bool [b]; the number of rows with
        a NaN."""
        values = rows("scores", found_in_outputs(self.scores, outputs, batch), batch)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            raise InputError(f"the scores are {values.dtype}; expected floats.")
        own = rows("labels", found(self.labels, outputs, batch), batch)
        number = ~jnp.isnan(values)
        usable = mask & number
        unscored = {"unscored": _count(mask & ~number)}
        return values.astype(jnp.float32), usable & (own == 1), usable & (own == 0), unscored

    def outside(self, outputs: Any, batch: Batch) -> tuple[Array, str]:
        """See Task."""
        own = rows("labels", found(self.labels, outputs, batch), batch)
        return (own != 0) & (own != 1), "0..1"


@dataclass(frozen=True)
class PrecisionRecall(_Binary, Metric):
    """precision, recall and f1, where records with scores of at least the threshold are predicted
    positive.

    nan if undefined: recall without positive records, precision without positive predictions, all
    of them if a score is NaN. labels: [b] of 0 and 1 or booleans, a key of the batch or a
    function(outputs, batch). scores: [b], a key of the outputs, a function(outputs, batch), or
    None: the outputs themselves."""

    threshold: float = 0.5
    better = dict.fromkeys(("precision", "recall", "f1"), "max")

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """Counts, int32 []: yes, predicted, right, unscored."""
        scores, yes, no, state = self._scored(outputs, batch, mask)
        above = scores >= self.threshold
        return state | {
            "yes": _count(yes),
            "predicted": _count((yes | no) & above),
            "right": _count(yes & above),
        }

    def compute(self, state: Any) -> Computed:
        """All values by name."""
        yes, predicted, right = (float(state[name]) for name in ("yes", "predicted", "right"))
        values = {
            "precision": (right, predicted),
            "recall": (right, yes),
            "f1": (2 * right, yes + predicted),
        }
        return {
            name: math.nan if state["unscored"] else float(share(*value))
            for name, value in values.items()
        }


@dataclass(frozen=True)
class AUC(_Binary, Metric):
    """roc, the area under the ROC curve, and average_precision, the area under the stepwise
    precision-recall curve.

    Scores are counted in `bins` equal parts of low..high, a resolution of (high - low) / bins;
    scores outside go to the first or last bin. Scores in the same bin are ties: both values are
    exact if different scores are in different bins, otherwise roc is off by at most roc_error, half
    the share of pairs that are in the same bin. nan if all records are positive or all negative, or
    if a score is NaN. labels and scores: as for PrecisionRecall. Scores are probabilities unless
    low and high are given; for logits, scores may be a function that returns
    jax.nn.sigmoid(outputs). Takes two int32 [bins] on every device."""

    bins: int = 16_384
    low: float = 0.0
    high: float = 1.0
    better: ClassVar = {"roc": "max", "average_precision": "max", "roc_error": "min"}

    def __post_init__(self) -> None:
        check_positive_int("bins", self.bins)
        check_number("bins", self.bins, at_most=MOST_BINS, more=": float32 distinguishes no more")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise OptionError(
                f"low={self.low} and high={self.high} must be finite, and low below high."
            )

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """yes, no int32 [bins]; unscored int32 []."""
        scores, yes, no, state = self._scored(outputs, batch, mask)
        place = jnp.floor((scores - self.low) * (self.bins / (self.high - self.low)))
        # Clip as float: conversion to int32 is undefined outside its range and for NaN.
        bins = jnp.where(yes | no, jnp.clip(place, 0, self.bins - 1), 0).astype(jnp.int32)
        none = jnp.zeros(self.bins, jnp.int32)
        return state | {
            "yes": none.at[bins].add(yes.astype(jnp.int32)),
            "no": none.at[bins].add(no.astype(jnp.int32)),
        }

    def compute(self, state: Any) -> Computed:
        """All values by name."""
        # From the highest score down, in integers: only the final divisions round.
        yes = state["yes"][::-1]
        no = state["no"][::-1]
        all_yes = np.cumsum(yes)
        all_no = np.cumsum(no)
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


def _count(which: Array) -> Array:
    return jnp.sum(which, dtype=jnp.int32)
