"""The arrays of a metric, found in a model's outputs and in the batch, and checks of labels while a
step is traced.

Rows without a label have no part in the loss and in the metrics; a label outside of the classes is
an error. `_mask` never changes: it is the proof that every record was delivered, with or without a
label."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from pipeline.checks import did_you_mean
from pipeline.errors import InputError
from pipeline.sizes import counted
from pipeline.spec import MASK
from trainer.inputs import LABELLED
from trainer.task import Batch, Metrics, Target

FromBatch = str | Callable[[Any, Batch], Array]
"""A key of the batch, or a function(outputs, batch)."""
FromOutputs = str | Callable[[Any, Batch], Array] | None
"""A key of the outputs, a function(outputs, batch), or None if the outputs are the array itself."""
# begins the names of rows with such labels, bool [b], and of their counts; what is wrong follows
OUTSIDE = "_outside"
REMEDY = (
    "Correct these labels or the number of classes. Classes that are not numbered from 0 need "
    "Target(base=...), or a function as the metric's labels. -1 is a missing label only if the "
    "task has a Target and no class has this number"
)


def found(where: FromBatch, outputs: Any, batch: Batch) -> Array:
    """The array of `where`. Raises InputError for a key that the batch does not have."""
    if callable(where):
        return where(outputs, batch)
    if where not in batch:
        raise InputError(f"the batch has no {where!r}.{did_you_mean(where, batch)}")
    return batch[where]


def found_in_outputs(where: FromOutputs, outputs: Any, batch: Batch) -> Array:
    """The array of `where`. Raises InputError for a missing key, or if `where` is None and the
    outputs are no array."""
    if callable(where):
        return where(outputs, batch)
    if where is None and hasattr(outputs, "shape"):
        return outputs
    if isinstance(outputs, Mapping) and where in outputs:
        return outputs[where]
    known = type(outputs).__name__
    if isinstance(outputs, Mapping):
        known = f"a dict of {', '.join(map(repr, outputs))}"
    expected = "one array" if where is None else f"a dict with {where!r}"
    raise InputError(
        f"the task's outputs are {known}; expected {expected}. Give one of their keys or a "
        "function(outputs, batch) as the metric's logits or scores."
    )


def rows(name: str, array: Any, batch: Batch) -> Array:
    """`array` as [b] numbers. Raises InputError, which names it, for another shape."""
    shape = jnp.shape(batch[MASK])
    if jnp.shape(array) != shape:
        raise InputError(
            f"the {name} have the shape {list(jnp.shape(array))}; expected {list(shape)}, one per "
            "record."
        )
    return jnp.asarray(array)


def class_labels(where: FromBatch, outputs: Any, batch: Batch) -> Array:
    """Class numbers int32 [b], from 0. Raises InputError for another shape or floats."""
    labels = rows("labels", found(where, outputs, batch), batch)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise InputError(f"the labels are {labels.dtype}; expected integers, class numbers from 0.")
    return labels.astype(jnp.int32)


def class_logits(where: FromOutputs, outputs: Any, batch: Batch) -> Array:
    """Scores [b, classes]; the highest is the predicted class. Raises InputError for another
    shape."""
    logits = found_in_outputs(where, outputs, batch)
    records = jnp.shape(batch[MASK])[0]
    if jnp.ndim(logits) != 2 or jnp.shape(logits)[0] != records:
        raise InputError(
            f"the logits have the shape {list(jnp.shape(logits))}; expected [{records}, classes], "
            "one row per record."
        )
    return jnp.asarray(logits)


def counting(batch: Batch) -> Array:
    """float32 [b]: above 0 where a row has part in the loss and in the metrics."""
    return batch.get(LABELLED, batch[MASK])


def labelled(batch: Batch, target: Target | None) -> dict[str, Any]:
    """The batch with `_labelled`, and the rows with a label outside of the target's classes, or
    without one.

    In rows that count, `base` takes the place of a label that is missing or outside: a NaN there
    would reach gradients even through `where`. Without a target, this is the batch."""
    if target is None:
        return dict(batch)
    if target.classes is None:
        labels = rows("labels", found(target.key, None, batch), batch)
        named = {}
        unusable = missing = target.missing(labels)
    else:
        labels = class_labels(target.key, None, batch)
        last = target.base + target.classes - 1
        missing = target.missing(labels)
        unusable = (labels < target.base) | (labels > last)
        named = {
            f"{OUTSIDE} with a label {target.key!r} outside of {target.base}..{last}": unusable
        }
    counts = batch[MASK] > 0
    known = jnp.where(counts & unusable, target.base, batch[target.key])
    return {**batch, **named, target.key: known, LABELLED: (counts & ~missing).astype(jnp.float32)}


def outside_rows(outputs: Any, batch: Batch, metrics: Metrics) -> dict[str, Array]:
    """The rows, bool [b], whose label is outside of the target's or of a metric's classes, if they
    have a label."""
    outside = {name: rows for name, rows in batch.items() if name.startswith(OUTSIDE)}
    for name, metric in metrics.items():
        if of_metric := getattr(metric, "outside", None):
            rows, allowed = of_metric(outputs, batch)
            outside[f"{OUTSIDE} with a label outside of {allowed} in the metric {name!r}"] = rows
    return outside


def told_outside(counts: Mapping[str, float]) -> str:
    """The numbers of outside_rows in words, such as "2 records with a label 'city' outside of
    0..1"; or ""."""
    return "; ".join(
        f"{counted(int(count), 'record')}{name.removeprefix(OUTSIDE)}"
        for name, count in counts.items()
        if name.startswith(OUTSIDE) and int(count)
    )
