"""Where a metric finds its arrays in what a model gave and in the batch, checked while the step is traced."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pipeline.shards.errors import InputError, did_you_mean
from trainer.inputs import MASK
from trainer.task import Batch

__all__ = ["FromBatch", "FromOutputs", "class_labels", "class_logits", "found", "found_in_outputs", "rows"]

FromBatch = str | Callable[[Any, Batch], jax.Array]
"""A key of the batch, or a function(outputs, batch)."""
FromOutputs = str | Callable[[Any, Batch], jax.Array] | None
"""A key of the outputs, a function(outputs, batch), or None where the outputs are the array itself."""


def found(where: FromBatch, outputs: Any, batch: Batch) -> jax.Array:
    """What `where` names. InputError for a key that the batch does not have."""
    if callable(where):
        return where(outputs, batch)
    if where not in batch:
        raise InputError(f"the batch has no {where!r}.{did_you_mean(where, batch)}")
    return batch[where]


def found_in_outputs(where: FromOutputs, outputs: Any, batch: Batch) -> jax.Array:
    """What `where` names. InputError for a key that the outputs do not have, and for outputs that are no array."""
    if callable(where):
        return where(outputs, batch)
    if where is None and hasattr(outputs, "shape"):
        return outputs
    if isinstance(outputs, Mapping) and where in outputs:
        return outputs[where]
    known = f"a dict of {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else type(outputs).__name__
    wanted = "one array" if where is None else f"a dict with {where!r}"
    raise InputError(
        f"the task's outputs are {known}; expected {wanted}. Name a key of them, or give a function(outputs, batch)."
    )


def rows(name: str, array: Any, batch: Batch) -> jax.Array:
    """`array` as [b] numbers. InputError, naming it, for another shape."""
    wanted = jnp.shape(batch[MASK])
    if jnp.shape(array) != wanted:
        raise InputError(f"the {name} have the shape {list(jnp.shape(array))}; expected {list(wanted)}, one a record.")
    return jnp.asarray(array)


def class_labels(where: FromBatch, outputs: Any, batch: Batch) -> jax.Array:
    """Class numbers int32 [b], from 0. InputError for another shape or for floats."""
    labels = rows("labels", found(where, outputs, batch), batch)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise InputError(f"the labels are {labels.dtype}; expected integers, the numbers of classes from 0 on.")
    return labels.astype(jnp.int32)


def class_logits(where: FromOutputs, outputs: Any, batch: Batch) -> jax.Array:
    """Scores [b, classes], the highest for the class that is predicted. InputError for another shape."""
    logits = found_in_outputs(where, outputs, batch)
    records = jnp.shape(batch[MASK])[0]
    if jnp.ndim(logits) != 2 or jnp.shape(logits)[0] != records:
        raise InputError(
            f"the logits have the shape {list(jnp.shape(logits))}; expected [{records}, classes], one row a record."
        )
    return jnp.asarray(logits)
