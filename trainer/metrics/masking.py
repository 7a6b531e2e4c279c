"""Sums and means over the records of a batch that count, computed on the device inside the step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.batch_spec import ROWS_FIRST, BatchAxes
from trainer.inputs import CRC, INDEX, MASK
from trainer.task import Batch

__all__ = ["PADDINGS", "bad_rows", "blank_padding", "due_crc", "masked_mean", "masked_sum", "records"]

# Values of padding rows. Tasks normally see the first; evaluate(check_padding=True) also shows them the others.
PADDINGS = ("zeros", "NaN (in floats)", "the largest values")


def records(batch: Batch) -> jax.Array:
    """Number of rows that count, int32."""
    return jnp.sum(batch[MASK] > 0, dtype=jnp.int32)


def bad_rows(batch: Batch) -> jax.Array:
    """Number of rows, int32, of bad records that the input left out: masked, but with an index, unlike padding."""
    return jnp.sum(_bad(batch), dtype=jnp.int32)


def _bad(batch: Batch) -> jax.Array:
    if INDEX not in batch:
        return jnp.zeros(batch[MASK].shape, bool)
    return (batch[INDEX] >= 0) & ~(batch[MASK] > 0)


def masked_sum(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The float32 sum of `values` [b] where `mask` is above 0. Uses where, as 0 * NaN is NaN: others may be NaN."""
    return jnp.sum(jnp.where(mask > 0, values.astype(jnp.float32), 0.0))


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """masked_sum divided by the number of rows that count; 0 if none does."""
    return masked_sum(values, mask) / jnp.maximum(jnp.sum(mask > 0), 1)


def due_crc(batch: Batch) -> jax.Array:
    """The uint32 sum mod 2**32 of the crcs of rows that count, as read, and of rows left out, as expected."""
    if CRC not in batch:
        return jnp.uint32(0)
    return jnp.sum(jnp.where((batch[MASK] > 0) | _bad(batch), batch[CRC], 0), dtype=jnp.uint32)


def blank_padding(batch: Batch, padding: int | jax.Array = 0, axes: BatchAxes = ROWS_FIRST) -> dict[str, Any]:
    """`batch` with PADDINGS[padding], by default zeros, in every row that does not count.

    A NaN there would reach gradients even through `where`, whose gradient is 0 times the NaN."""
    mask = batch[MASK] > 0

    def blank(leaf: jax.Array, axis: int) -> jax.Array:
        shaped = mask.reshape((1,) * axis + mask.shape + (1,) * (leaf.ndim - axis - 1))
        values = _padding_values(leaf.dtype)
        return jnp.where(shaped, leaf, values[padding] if isinstance(padding, int) else jnp.asarray(values)[padding])

    own = {key: value for key, value in batch.items() if key.startswith("_")}
    return axes.map(blank, {key: value for key, value in batch.items() if key not in own}) | own


def _padding_values(dtype: Any) -> np.ndarray:
    """The values of PADDINGS in this dtype."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array([0, np.nan, jnp.finfo(dtype).max], dtype)
    return np.array([0, 0, 1 if dtype.kind == "b" else jnp.iinfo(dtype).max], dtype)
