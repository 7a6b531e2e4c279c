"""Finds the arrays of a metric in a model's outputs and in the batch. Checks run while the step is traced."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from pipeline.errors import InputError, did_you_mean
from trainer.inputs import MASK
from trainer.task import Batch

FromBatch = str | Callable[[Any, Batch], Array]
"""A key of the batch, or a function(outputs, batch)."""
FromOutputs = str | Callable[[Any, Batch], Array] | None
"""A key of the outputs, a function(outputs, batch), or None if the outputs are the array itself."""


def found(where: FromBatch, outputs: Any, batch: Batch) -> Array:
    """The array of `where`. Raises InputError for a key that the batch does not have."""
    if callable(where):
        return where(outputs, batch)
    if where not in batch:
        raise InputError(f"the batch has no {where!r}.{did_you_mean(where, batch)}")
    return batch[where]


def found_in_outputs(where: FromOutputs, outputs: Any, batch: Batch) -> Array:
    """The array of `where`. Raises InputError for a missing key, or if `where` is None and the outputs are no array."""
    if callable(where):
        return where(outputs, batch)
    if where is None and hasattr(outputs, "shape"):
        return outputs
    if isinstance(outputs, Mapping) and where in outputs:
        return outputs[where]
    known = f"a dict of {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else type(outputs).__name__
    wanted = "one array" if where is None else f"a dict with {where!r}"
    raise InputError(
        f"the task's outputs are {known}; expected {wanted}. Give one of their keys or a function(outputs, batch) "
        "as the metric's logits or scores."
    )


def rows(name: str, array: Any, batch: Batch) -> Array:
    """`array` as [b] numbers. Raises InputError, which names it, for another shape."""
    wanted = jnp.shape(batch[MASK])
    if jnp.shape(array) != wanted:
        raise InputError(
            f"the {name} have the shape {list(jnp.shape(array))}; expected {list(wanted)}, one per record."
        )
    return jnp.asarray(array)


def class_labels(where: FromBatch, outputs: Any, batch: Batch) -> Array:
    """Class numbers int32 [b], from 0. Raises InputError for another shape or floats."""
    labels = rows("labels", found(where, outputs, batch), batch)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise InputError(f"the labels are {labels.dtype}; expected integers, class numbers from 0.")
    return labels.astype(jnp.int32)


def class_logits(where: FromOutputs, outputs: Any, batch: Batch) -> Array:
    """Scores [b, classes]; the highest is the predicted class. Raises InputError for another shape."""
    logits = found_in_outputs(where, outputs, batch)
    records = jnp.shape(batch[MASK])[0]
    if jnp.ndim(logits) != 2 or jnp.shape(logits)[0] != records:
        raise InputError(
            f"the logits have the shape {list(jnp.shape(logits))}; expected [{records}, classes], one row per record."
        )
    return jnp.asarray(logits)
