"""The images [b, height, width, channels] of a batch, for the device ops."""

from typing import Any

import jax
import jax.numpy as jnp

from pipeline.errors import InputError, did_you_mean
from trainer.task import Batch

__all__ = ["clipped", "images_of", "inside", "per_record"]


def images_of(batch: Batch, key: str, op: str, channels: tuple[int, ...] | None = None) -> jax.Array:
    """batch[key]. Raises InputError, which names the op, unless it has 4 dimensions and one of these channel counts."""
    if key not in batch:
        raise InputError(f"{op} reads {key!r}, which the batch does not have.{did_you_mean(key, batch)}")
    images = batch[key]
    if images.ndim != 4:
        raise InputError(
            f"{op}: {key!r} is {images.dtype} {list(images.shape)}; it must be images [b, height, width, channels]."
        )
    if channels and images.shape[-1] not in channels:
        allowed = " or ".join(map(str, channels))
        raise InputError(f"{op}: {key!r} has {images.shape[-1]} channels; it must have {allowed}.")
    return images


def per_record(values: jax.Array, images: jax.Array) -> jax.Array:
    """Reshapes [b] to [b, 1, 1, 1]."""
    return values.reshape(values.shape + (1,) * (images.ndim - 1))


def clipped(values: Any) -> jax.Array:
    """Clips to 0..255, the range of levels."""
    return jnp.clip(values, 0.0, 255.0)


def inside(top: jax.Array, left: jax.Array, height: jax.Array, width: jax.Array, images: jax.Array) -> jax.Array:
    """bool [b, h, w, 1]: the pixels of `images` in each record's rectangle, which the four int32 [b] define."""

    def along(start: jax.Array, length: jax.Array, size: int) -> jax.Array:
        places = jnp.arange(size)
        return (places >= start[:, None]) & (places < (start + length)[:, None])

    rows, columns = along(top, height, images.shape[1]), along(left, width, images.shape[2])
    return (rows[:, :, None] & columns[:, None, :])[..., None]
