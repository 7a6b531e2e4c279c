"""Sums and means over the records of a batch that count. They run on the device, inside the step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.inputs import CRC, INDEX, MASK
from trainer.task import Batch

__all__ = ["PADDINGS", "bad_rows", "blank_padding", "due_crc", "masked_mean", "masked_sum", "records"]

# What rows of padding may hold. Tasks see the first; a check shows them the others.
PADDINGS = ("zeros", "NaN (in floats)", "the largest values")


def records(batch: Batch) -> jax.Array:
    """How many rows count, int32."""
    return jnp.sum(batch[MASK] > 0, dtype=jnp.int32)


def bad_rows(batch: Batch) -> jax.Array:
    """How many rows are of a record that the input left out, int32: numbered, unlike padding, but masked."""
    return jnp.sum(_bad(batch), dtype=jnp.int32)


def _bad(batch: Batch) -> jax.Array:
    if INDEX not in batch:
        return jnp.zeros(batch[MASK].shape, bool)
    return (batch[INDEX] >= 0) & ~(batch[MASK] > 0)


def masked_sum(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The sum of `values` [b] where `mask` is above 0, float32. A NaN elsewhere does not reach it: 0 * NaN is NaN."""
    return jnp.sum(jnp.where(mask > 0, values.astype(jnp.float32), 0.0))


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """masked_sum over the number of rows that count; 0 where none does."""
    return masked_sum(values, mask) / jnp.maximum(jnp.sum(mask > 0), 1)


def due_crc(batch: Batch) -> jax.Array:
    """The sum mod 2**32, uint32, of the crcs of rows that count, as found, and of those left out, as promised."""
    if CRC not in batch:
        return jnp.uint32(0)
    return jnp.sum(jnp.where((batch[MASK] > 0) | _bad(batch), batch[CRC], 0), dtype=jnp.uint32)


def blank_padding(batch: Batch, padding: int | jax.Array = 0) -> dict[str, Any]:
    """`batch` with PADDINGS[padding], zeros, in every row that does not count.

    A NaN there would poison gradients even under `where`: its gradient is 0 times the NaN."""
    mask = batch[MASK] > 0

    def blank(leaf: jax.Array) -> jax.Array:
        shaped = mask.reshape(mask.shape + (1,) * (leaf.ndim - 1))
        values = _padding_values(leaf.dtype)
        return jnp.where(shaped, leaf, values[padding] if isinstance(padding, int) else jnp.asarray(values)[padding])

    return {key: value if key.startswith("_") else jax.tree.map(blank, value) for key, value in batch.items()}


def _padding_values(dtype: Any) -> np.ndarray:
    """Of PADDINGS, in this dtype."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array([0, np.nan, jnp.finfo(dtype).max], dtype)
    return np.array([0, 0, 1 if dtype.kind == "b" else jnp.iinfo(dtype).max], dtype)
