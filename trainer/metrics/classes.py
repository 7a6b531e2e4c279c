"""Metrics of models that choose one of several classes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.checks import check_positive_int
from pipeline.errors import InputError
from trainer.metrics.labels import FromBatch, FromOutputs, class_labels, class_logits
from trainer.task import Batch, Computed, Metric

__all__ = ["Accuracy", "ConfusionMatrix", "PerClass", "TopK", "share"]


class _OfLogits:
    """Metrics of class numbers and logits. better: see Metric."""

    labels: FromBatch
    logits: FromOutputs

    def _labels_and_scores(self, outputs: Any, batch: Batch) -> tuple[Array, Array]:
        return class_labels(self.labels, outputs, batch), class_logits(self.logits, outputs, batch)

    def outside(self, outputs: Any, batch: Batch) -> tuple[Array, str]:
        """See Task."""
        labels, scores = self._labels_and_scores(outputs, batch)
        classes = scores.shape[1]
        return (labels < 0) | (labels >= classes), f"0..{classes - 1}"


@dataclass(frozen=True)
class TopK(_OfLogits):
    """Whether a record's class is among the k with the highest logits; the mean is the top-k
    accuracy.

    Of equal logits, the lower class number ranks first, as in argmax and lax.top_k. A record with a
    NaN logit counts as wrong. A label outside the classes ends the run with an error, in training
    and evaluation. labels: int [b] from 0, a key of the batch or a function(outputs, batch).
    logits: [b, classes], a key of the outputs, a function(outputs, batch), or None: the outputs
    themselves."""

    k: int
    labels: FromBatch
    logits: FromOutputs = None
    better = "max"

    def __post_init__(self) -> None:
        check_positive_int("k", self.k)

    def __call__(self, outputs: Any, batch: Batch) -> Array:
        """bool [b]."""
        labels, scores = self._labels_and_scores(outputs, batch)
        own = labels[:, None]
        classes = scores.shape[1]
        if self.k > classes:
            raise InputError(f"k={self.k} exceeds the number of classes in the logits, {classes}.")
        its = jnp.take_along_axis(scores, own, axis=1)
        # Comparisons, not a sort: one pass, and no class is gathered from the devices it is split
        # over.
        above = (scores > its) | ((scores == its) & (jnp.arange(classes) < own))
        return ~jnp.any(jnp.isnan(scores), axis=1) & (jnp.sum(above, axis=1) < self.k)


@dataclass(frozen=True)
class Accuracy(_OfLogits):
    """Whether a record's class has the highest logit: TopK(1, labels, logits)."""

    labels: FromBatch
    logits: FromOutputs = None
    better = "max"

    def __call__(self, outputs: Any, batch: Batch) -> Array:
        """bool [b]."""
        return TopK(1, self.labels, self.logits)(outputs, batch)


@dataclass(frozen=True)
class ConfusionMatrix(_OfLogits, Metric):
    """Number of records per label and predicted class: int64 [classes, classes], [label,
    predicted].

    Takes an int32 array of this size on every device; for very many classes, use PerClass. Of equal
    logits, the lower class is predicted; NaN counts as the highest logit. labels and logits: as for
    TopK."""

    labels: FromBatch
    logits: FromOutputs = None
    better: ClassVar = {}

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """counts int32 [classes, classes]."""
        labels, scores = self._labels_and_scores(outputs, batch)
        # A row that does not count may have any label: 0 is added there, or nothing.
        none = jnp.zeros(scores.shape[1:] * 2, jnp.int32)
        return {"counts": none.at[labels, jnp.argmax(scores, axis=1)].add(mask.astype(jnp.int32))}

    def compute(self, state: Any) -> Computed:
        """The matrix."""
        return state["counts"]


@dataclass(frozen=True)
class PerClass(_OfLogits, Metric):
    """recall (the accuracy of the class), precision and f1 of every class, float64 [classes];
    support, its number of records, int64 [classes]; and their means: macro_recall (balanced
    accuracy), macro_precision, macro_f1.

    Undefined values (the recall of a class without records) are nan and left out of the means, as
    in scikit-learn with zero_division=nan. labels and logits: as for TopK."""

    labels: FromBatch
    logits: FromOutputs = None
    better = dict.fromkeys(("macro_recall", "macro_precision", "macro_f1"), "max")

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """support, predicted, right int32 [classes]."""
        labels, scores = self._labels_and_scores(outputs, batch)
        none = jnp.zeros(scores.shape[1], jnp.int32)
        predicted = jnp.argmax(scores, axis=1)
        counts = mask.astype(jnp.int32)
        return {
            "support": none.at[labels].add(counts),
            "predicted": none.at[predicted].add(counts),
            "right": none.at[labels].add(counts * (labels == predicted)),
        }

    def compute(self, state: Any) -> Computed:
        """All values by name."""
        support = state["support"]
        predicted = state["predicted"]
        right = state["right"]
        values = {
            "recall": share(right, support),
            "precision": share(right, predicted),
            "f1": share(2 * right, support + predicted),
        }
        return {
            **values,
            "support": support,
            **{f"macro_{name}": _mean(each) for name, each in values.items()},
        }


def share(part: Any, total: Any) -> np.ndarray:
    """part / total, float64; nan if the total is 0."""
    part, total = np.broadcast_arrays(part, total)
    return np.divide(part, total, out=np.full(total.shape, np.nan), where=total != 0)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
