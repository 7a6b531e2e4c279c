"""Rows without a label have no part in the loss and in the metrics; a label outside of the classes is an error.

`_mask` never changes: it is the proof that every record was delivered, with or without a label."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from pipeline.sizes import counted
from trainer.inputs import LABELLED, MASK
from trainer.metrics.found import class_labels, found, rows
from trainer.task import Batch, Metrics, Target

OUTSIDE = "_outside"  # begins the names of rows with such labels, bool [b], and of their counts; what is wrong follows
REMEDY = (
    "Correct these labels or the number of classes. Classes that are not numbered from 0 need Target(base=...), or a "
    "function as the metric's labels. -1 is a missing label only if the task has a Target and no class has this number"
)


def counting(batch: Batch) -> Array:
    """float32 [b]: above 0 where a row has part in the loss and in the metrics."""
    return batch.get(LABELLED, batch[MASK])


def labelled(batch: Batch, target: Target | None) -> dict[str, Any]:
    """The batch with `_labelled`, and the rows with a label outside of the target's classes, or without one.

    In rows that count, `base` takes the place of a label that is missing or outside: a NaN there would reach gradients
    even through `where`. Without a target, this is the batch."""
    if target is None:
        return dict(batch)
    if target.classes is None:
        labels, named = rows("labels", found(target.key, None, batch), batch), {}
        unusable = missing = target.missing(labels)
    else:
        labels, last = class_labels(target.key, None, batch), target.base + target.classes - 1
        missing, unusable = target.missing(labels), (labels < target.base) | (labels > last)
        named = {f"{OUTSIDE} with a label {target.key!r} outside of {target.base}..{last}": unusable}
    counts = batch[MASK] > 0
    known = jnp.where(counts & unusable, target.base, batch[target.key])
    return {**batch, **named, target.key: known, LABELLED: (counts & ~missing).astype(jnp.float32)}


def outside_rows(outputs: Any, batch: Batch, metrics: Metrics) -> dict[str, Array]:
    """The rows, bool [b], whose label is outside of the target's or of a metric's classes, if they have a label."""
    outside = {name: rows for name, rows in batch.items() if name.startswith(OUTSIDE)}
    for name, metric in metrics.items():
        if of_metric := getattr(metric, "outside", None):
            rows, allowed = of_metric(outputs, batch)
            outside[f"{OUTSIDE} with a label outside of {allowed} in the metric {name!r}"] = rows
    return outside


def told_outside(counts: Mapping[str, float]) -> str:
    """The numbers of outside_rows in words, such as "2 records with a label 'city' outside of 0..1"; or ""."""
    outside = {name.removeprefix(OUTSIDE): int(count) for name, count in counts.items() if name.startswith(OUTSIDE)}
    return "; ".join(f"{counted(count, 'record')}{what}" for what, count in outside.items() if count)
