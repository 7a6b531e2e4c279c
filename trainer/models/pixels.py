"""What a model does to the levels of pixels first."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

Statistics = tuple[Sequence[float], Sequence[float]]
"""Means and deviations of the channels, or one for all, as fractions of 255."""
STATISTICS: dict[str, Statistics] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5,), (0.5,)),
    "unit": ((0.0,), (1.0,)),
}
"""By name: those of ImageNet's red, green and blue; to -1..1; to 0..1."""


def normalized(images: Array, statistics: Statistics) -> Array:
    """float32: images [..., channels] in 0..255 with these statistics; grey ones with the averages
    of those of several channels."""
    channels = images.shape[-1]
    mean, std = (
        jnp.asarray(values if channels == len(values) else [sum(values) / len(values)], jnp.float32)
        for values in statistics
    )
    return (images.astype(jnp.float32) / 255 - mean) / std
