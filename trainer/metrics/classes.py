"""Metrics of models that choose one of several classes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import EvaluationError, InputError
from trainer.config import check_positive_int
from trainer.metrics.found import FromBatch, FromOutputs, class_labels, class_logits
from trainer.task import Batch, Computed, Metric

__all__ = ["Accuracy", "ConfusionMatrix", "PerClass", "TopK", "share"]


@dataclass(frozen=True)
class TopK:
    """Whether a record's class is among the k with the highest logits; the mean is the top-k accuracy.

    Of equal logits, the lower class number ranks first, as in argmax and lax.top_k. A record with a NaN logit or with a
    label outside the classes counts as wrong.
    labels: int [b] from 0, a key of the batch or a function(outputs, batch). logits: [b, classes], a key of the
    outputs, a function(outputs, batch), or None: the outputs themselves."""

    k: int
    labels: FromBatch
    logits: FromOutputs = None

    def __post_init__(self) -> None:
        check_positive_int("k", self.k)

    def __call__(self, outputs: Any, batch: Batch) -> jax.Array:
        """bool [b]."""
        scores = class_logits(self.logits, outputs, batch)
        own = class_labels(self.labels, outputs, batch)[:, None]
        classes = scores.shape[1]
        if self.k > classes:
            raise InputError(f"k={self.k} exceeds the number of classes in the logits, {classes}.")
        its = jnp.take_along_axis(scores, jnp.clip(own, 0, classes - 1), axis=1)
        # Comparisons, not a sort: one pass, and no class is gathered from the devices it is split over.
        above = (scores > its) | ((scores == its) & (jnp.arange(classes) < own))
        usable = (own[:, 0] >= 0) & (own[:, 0] < classes) & ~jnp.any(jnp.isnan(scores), axis=1)
        return usable & (jnp.sum(above, axis=1) < self.k)


@dataclass(frozen=True)
class Accuracy:
    """Whether a record's class has the highest logit: TopK(1, labels, logits)."""

    labels: FromBatch
    logits: FromOutputs = None

    def __call__(self, outputs: Any, batch: Batch) -> jax.Array:
        """bool [b]."""
        return TopK(1, self.labels, self.logits)(outputs, batch)


@dataclass(frozen=True)
class ConfusionMatrix(Metric):
    """Number of records per label and predicted class: int64 [classes, classes], [label, predicted].

    Takes an int32 array of this size on every device; for very many classes, use PerClass. Of equal logits, the lower
    class is predicted; NaN counts as the highest logit. labels and logits: as for TopK. Labels outside the classes are
    an EvaluationError."""

    labels: FromBatch
    logits: FromOutputs = None

    def from_batch(self, outputs: Any, batch: Batch, mask: jax.Array) -> Any:
        """counts int32 [classes, classes]; strays int32 []."""
        rows = _Rows.of(self.labels, self.logits, outputs, batch, mask)
        none = jnp.zeros((rows.classes, rows.classes), jnp.int32)
        return {"counts": none.at[rows.labels, rows.predicted].add(rows.counts), "strays": rows.strays}

    def compute(self, state: Any) -> Computed:
        """The matrix."""
        _check_strays(state["strays"], len(state["counts"]))
        return state["counts"]


@dataclass(frozen=True)
class PerClass(Metric):
    """recall (the accuracy of the class), precision and f1 of every class, float64 [classes]; support, its number of
    records, int64 [classes]; and their means: macro_recall (balanced accuracy), macro_precision, macro_f1.

    Undefined values (the recall of a class without records) are nan and left out of the means, as in scikit-learn with
    zero_division=nan. labels and logits: as for TopK. Labels outside the classes are an EvaluationError."""

    labels: FromBatch
    logits: FromOutputs = None

    def from_batch(self, outputs: Any, batch: Batch, mask: jax.Array) -> Any:
        """support, predicted, right int32 [classes]; strays int32 []."""
        rows = _Rows.of(self.labels, self.logits, outputs, batch, mask)
        none = jnp.zeros(rows.classes, jnp.int32)
        return {
            "support": none.at[rows.labels].add(rows.counts),
            "predicted": none.at[rows.predicted].add(rows.counts),
            "right": none.at[rows.labels].add(jnp.where(rows.labels == rows.predicted, rows.counts, 0)),
            "strays": rows.strays,
        }

    def compute(self, state: Any) -> Computed:
        """All values by name."""
        support, predicted, right = state["support"], state["predicted"], state["right"]
        _check_strays(state["strays"], len(support))
        values = {
            "recall": share(right, support),
            "precision": share(right, predicted),
            "f1": share(2 * right, support + predicted),
        }
        return {**values, "support": support, **{f"macro_{name}": _mean(each) for name, each in values.items()}}


def share(part: Any, whole: Any) -> np.ndarray:
    """part / whole, float64; nan if whole is 0."""
    part, whole = np.broadcast_arrays(part, whole)
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole != 0)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


class _Rows(NamedTuple):
    """Per row label, predicted class and 1 if it counts, else 0, int32 [b]; number of labels outside the classes."""

    labels: jax.Array
    predicted: jax.Array
    counts: jax.Array
    strays: jax.Array
    classes: int

    @classmethod
    def of(cls, labels: FromBatch, logits: FromOutputs, outputs: Any, batch: Batch, mask: jax.Array) -> "_Rows":
        scores, own = class_logits(logits, outputs, batch), class_labels(labels, outputs, batch)
        known = (own >= 0) & (own < scores.shape[1])
        counts = (mask & known).astype(jnp.int32)
        strays = jnp.sum(mask & ~known, dtype=jnp.int32)
        # A row that does not count may have any class: 0 is added there.
        return cls(jnp.where(known, own, 0), jnp.argmax(scores, axis=1), counts, strays, scores.shape[1])


def _check_strays(strays: Any, classes: int) -> None:
    if strays:
        raise EvaluationError(
            f"{strays} records have a label outside the logits' {classes} classes, 0..{classes - 1}. Mask records "
            "without a label, or shift the labels with a function(outputs, batch), such as batch['label'] - 1."
        )
