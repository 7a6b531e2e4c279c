"""Metrics of a model that chooses one of several classes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.shards.errors import EvaluationError, InputError
from trainer.config import check_positive_int
from trainer.metrics.found import FromBatch, FromOutputs, class_labels, class_logits
from trainer.task import Batch, Computed, Metric

__all__ = ["Accuracy", "ConfusionMatrix", "PerClass", "TopK", "share"]


@dataclass(frozen=True)
class TopK:
    """Whether a record's class is among the k with the highest logits: the share of them, in a mean.

    Of equal logits the lower class number is the higher, as argmax and lax.top_k have it. A record with a NaN among
    its logits is never right, nor is one whose label is no class.
    labels: int [b] from 0, a key of the batch or a function(outputs, batch). logits: [b, classes], a key of the
    outputs, a function(outputs, batch), or None: the outputs themselves."""

    k: int
    labels: FromBatch
    logits: FromOutputs = None

    def __post_init__(self) -> None:
        check_positive_int("k", self.k)

    def __call__(self, outputs: Any, batch: Batch) -> jax.Array:
        """bool [b]."""
        return _among_the_top(self.k, self.labels, self.logits, outputs, batch)


@dataclass(frozen=True)
class Accuracy:
    """Whether a record's class is the one with the highest logit: TopK(1)."""

    labels: FromBatch
    logits: FromOutputs = None

    def __call__(self, outputs: Any, batch: Batch) -> jax.Array:
        """bool [b]."""
        return _among_the_top(1, self.labels, self.logits, outputs, batch)


def _among_the_top(k: int, labels: FromBatch, logits: FromOutputs, outputs: Any, batch: Batch) -> jax.Array:
    scores = class_logits(logits, outputs, batch)
    own = class_labels(labels, outputs, batch)[:, None]
    classes = scores.shape[1]
    if k > classes:
        raise InputError(f"k={k} is more than the {classes} classes that the logits have.")
    its = jnp.take_along_axis(scores, jnp.clip(own, 0, classes - 1), axis=1)
    # Comparisons and no sort: one pass, and no class is gathered from where it is split over devices.
    above = (scores > its) | ((scores == its) & (jnp.arange(classes) < own))
    usable = (own[:, 0] >= 0) & (own[:, 0] < classes) & ~jnp.any(jnp.isnan(scores), axis=1)
    return usable & (jnp.sum(above, axis=1) < k)


@dataclass(frozen=True)
class ConfusionMatrix(Metric):
    """How many records of each class were taken for which: int64 [classes, classes], [label, predicted].

    As large as that on every device, in int32; for very many classes take PerClass. Of equal logits the lower class
    is predicted, a NaN is the highest. labels and logits: as for TopK. EvaluationError for a label that is no class."""

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
    """recall (also called the class's accuracy), precision and f1 of every class, float64 [classes]; support, its
    records, int64 [classes]; and macro_recall (balanced accuracy), macro_precision, macro_f1, their means.

    What has no denominator (the recall of a class without records) is nan and in no mean, as scikit-learn has it
    with zero_division=nan. labels and logits: as for TopK. EvaluationError for a label that is no class."""

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
        """Every value by its name."""
        support, predicted, right = state["support"], state["predicted"], state["right"]
        _check_strays(state["strays"], len(support))
        values = {
            "recall": share(right, support),
            "precision": share(right, predicted),
            "f1": share(2 * right, support + predicted),
        }
        return {**values, "support": support, **{f"macro_{name}": _mean(each) for name, each in values.items()}}


def share(part: Any, whole: Any) -> np.ndarray:
    """part / whole, float64; nan where the whole is 0."""
    part, whole = np.broadcast_arrays(part, whole)
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole != 0)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


class _Rows(NamedTuple):
    """Of every row its label, the class predicted, and 1 or 0 as it counts, int32 [b]; how many labels are no class."""

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
        # A row that does not count may name any class: 0 is added there.
        return cls(jnp.where(known, own, 0), jnp.argmax(scores, axis=1), counts, strays, scores.shape[1])


def _check_strays(strays: Any, classes: int) -> None:
    if strays:
        raise EvaluationError(
            f"{strays} records have a label that is none of the logits' {classes} classes, 0..{classes - 1}. "
            "Mask records without a label, or shift the labels: function(outputs, batch) may give batch['label'] - 1."
        )
