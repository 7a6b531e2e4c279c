"""Exact sums over a batch as pairs of float32 numbers, which the trainer adds up over an epoch without rounding.

An int32 sum overflows at 2**31, such as 2 GiB of text; a float32 sum rounds after 24 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LOW_BITS = 16


def integer_sum(values: jax.Array, counts: jax.Array) -> jax.Array:
    """float32 [2]: the exact sum of `values` where `counts` is True, as whole_of reads it.

    values: int or bool [b, ...] from 0; those of a batch add up to less than 2**40, and there are at most 32,768. Sums
    of an epoch are exact up to 2**53."""
    each = jnp.where(counts, values, 0).astype(jnp.int32)
    high, low = (jnp.sum(part, dtype=jnp.int32) for part in (each >> LOW_BITS, each & (2**LOW_BITS - 1)))
    carried = high + (low >> LOW_BITS)
    return jnp.stack([carried, low & (2**LOW_BITS - 1)]).astype(jnp.float32)


def whole_of(state: np.ndarray) -> int:
    """The integer that is the sum of integer_sum's results."""
    high, low = (int(part) for part in state)
    return (high << LOW_BITS) + low


def float_sum(values: jax.Array, counts: jax.Array) -> jax.Array:
    """float32 [2]: the sum of `values` where `counts` is True, and its rounding error. Others may be NaN.

    values: float [b, ...]. Together they have about 48 bits, so the sum hardly depends on how records are batched.
    Pairwise, with Knuth's TwoSum: rows first, which are on one device each."""
    high = jnp.where(counts, values, 0).astype(jnp.float32)
    low = jnp.zeros_like(high)
    while high.ndim:
        high, low = _last_axis_sum(high, low)
    return jnp.stack([high, jnp.where(jnp.isfinite(high), low, 0)])


def total_of(state: np.ndarray) -> float:
    """The number that is the sum of float_sum's results."""
    return float(state[0] + state[1]) if np.isfinite(state[0]) else float(state[0])


def _last_axis_sum(high: Any, low: Any) -> tuple[Any, Any]:
    while (size := high.shape[-1]) > 1:
        half = (size + 1) // 2
        added = [(0, 0)] * (high.ndim - 1) + [(0, 2 * half - size)]
        (a, b), (a_low, b_low) = (jnp.split(jnp.pad(part, added), 2, axis=-1) for part in (high, low))
        high = a + b
        back = high - a
        low = a_low + b_low + ((a - (high - back)) + (b - back))
    return high[..., 0], low[..., 0]
