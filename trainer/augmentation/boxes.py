"""Rectangles in images, one per record."""

import jax
import jax.numpy as jnp

__all__ = ["inside"]


def inside(top: jax.Array, left: jax.Array, height: jax.Array, width: jax.Array, images: jax.Array) -> jax.Array:
    """bool [b, h, w, 1]: the pixels of `images` in each record's rectangle, which the four int32 [b] define."""

    def along(start: jax.Array, length: jax.Array, size: int) -> jax.Array:
        places = jnp.arange(size)
        return (places >= start[:, None]) & (places < (start + length)[:, None])

    rows, columns = along(top, height, images.shape[1]), along(left, width, images.shape[2])
    return (rows[:, :, None] & columns[:, None, :])[..., None]
