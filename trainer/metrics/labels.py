"""Rows without a label have no part in the loss and in the metrics; a label outside of the classes is an error.

The device marks rows and counts; the host puts the counts into words. `_mask` never changes: it is the proof that every
record was delivered, with or without a label."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.sizes import counted
from trainer.inputs import INDEX, LABELLED, MASK
from trainer.metrics.found import class_labels, found, rows
from trainer.task import Batch, Metrics, Target

# What is counted follows in words, such as "with a label 'city' outside of 0..1".
OUTSIDE, OUTSIDE_RECORD = "_outside ", "_outside_record "
REMEDY = (
    "Correct these labels or the number of classes. Classes that are not numbered from 0 need Target(base=...), or a "
    "function as the metric's labels. -1 is a missing label only if the task has a Target, and it is no class"
)


def counting(batch: Batch) -> jax.Array:
    """float32 [b]: above 0 where a row has part in the loss and in the metrics."""
    return batch.get(LABELLED, batch[MASK])


def unlabelled(batch: Batch) -> jax.Array:
    """bool [b]: rows that count, but have no label."""
    return (batch[MASK] > 0) & ~(counting(batch) > 0)


def labelled(batch: Batch, target: Target | None) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """The batch with `_labelled`; and in words, bool [b]: rows whose label is outside of the target's classes.

    In rows that count, `base` takes the place of what is missing or outside: a NaN there would reach gradients even
    through `where`. Without a target, there is nothing to add."""
    if target is None:
        return dict(batch), {}
    stored = rows("labels", found(target.key, None, batch), batch)
    labels = stored if target.classes is None else class_labels(target.key, None, batch)
    missing, outside, counts = target.missing(labels), target.outside(labels), batch[MASK] > 0
    known = jnp.where(counts & (missing | outside), target.base, stored)
    named = {} if target.classes is None else {f"with a label {target.key!r} outside of {target.allowed}": outside}
    return {**batch, target.key: known, LABELLED: (counts & ~missing).astype(jnp.float32)}, named


@runtime_checkable
class OfClasses(Protocol):
    """A metric that knows its classes."""

    def outside(self, outputs: Any, batch: Batch) -> tuple[jax.Array, str]:
        """Rows whose label is outside of them, bool [b]; and what is allowed, such as "0..9"."""
        ...


def outside_metrics(outputs: Any, batch: Batch, metrics: Metrics) -> dict[str, jax.Array]:
    """In words, bool [b]: rows whose label is outside of the classes of a metric that knows them."""
    rows = {}
    for name, metric in metrics.items():
        if isinstance(metric, OfClasses):
            outside, allowed = metric.outside(outputs, batch)
            rows[f"with a label outside of {allowed} in the metric {name!r}"] = outside
    return rows


def outside_counts(outside: Mapping[str, jax.Array], batch: Batch) -> dict[str, jax.Array]:
    """How many of these rows have part in the loss, int32."""
    counts = counting(batch) > 0
    return {f"{OUTSIDE}{what}": jnp.sum(each & counts, dtype=jnp.int32) for what, each in outside.items()}


def outside_records(outside: Mapping[str, jax.Array], batch: Batch) -> dict[str, jax.Array]:
    """One record among these rows, int32; -1 if there is none, or records have no numbers."""
    index = jnp.where(counting(batch) > 0, batch.get(INDEX, -1), -1)
    return {f"{OUTSIDE_RECORD}{what}": jnp.max(jnp.where(each, index, -1)) for what, each in outside.items()}


def taken_outside(scalars: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Removes what outside_counts and outside_records returned from the scalars of some steps, and returns it."""
    return {name: scalars.pop(name) for name in [*scalars] if name.startswith((OUTSIDE, OUTSIDE_RECORD))}


def told_outside(taken: Mapping[str, np.ndarray]) -> str:
    """What these steps found, such as "2 records with a label 'city' outside of 0..1, such as record 17"; or ""."""
    told = []
    for name, counts in taken.items():
        what = name.removeprefix(OUTSIDE)
        if name.startswith(OUTSIDE) and (count := int(np.sum(counts))):
            record = int(np.max(taken.get(OUTSIDE_RECORD + what, -1)))
            told.append(f"{counted(count, 'record')} {what}" + f", such as record {record}" * (record >= 0))
    return "; ".join(told)
