"""Color jitter for training, and normalization for training, evaluation and prediction."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import InputError, OptionError, did_you_mean
from trainer.augmentation.draws import uniform
from trainer.augmentation.images import clipped, images_of, per_record
from trainer.task import Batch

__all__ = ["STATISTICS", "color_jitter", "normalize"]

# Mean and standard deviation of each channel, as fractions of 255.
STATISTICS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5,), (0.5,)),
    "unit": ((0.0,), (1.0,)),
}
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def color_jitter(
    batch: Batch,
    key: str = "image",
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    stream: str = "color_jitter",
) -> Batch:
    """Changes brightness, then contrast, then saturation, each by a factor uniform in [max(0, 1 - x), 1 + x].

    Contrast scales the distance from the image's mean grey, saturation that from each pixel's grey. key: images
    [b, h, w, 1 or 3] with levels 0..255, uint8 or float; they become float32 in 0..255, not rounded.
    stream: use a different name for a second jitter of the same batch."""
    amounts = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
    for name, amount in amounts.items():
        if not 0 <= amount < math.inf:
            raise OptionError(f"color_jitter: {name}={amount} must be at least 0, and finite.")
    pixels = images_of(batch, key, "color_jitter", (3,) if saturation else (1, 3)).astype(jnp.float32)
    drawn = uniform(batch, stream, 3)
    ranges = [(max(0.0, 1 - amount), 1 + amount) for amount in amounts.values()]
    factors = [per_record(low + drawn[:, i] * (high - low), pixels) for i, (low, high) in enumerate(ranges)]
    if brightness:
        pixels = clipped(pixels * factors[0])
    if contrast:
        mean = _grey(pixels).mean(axis=(1, 2, 3), keepdims=True)
        pixels = clipped(mean + (pixels - mean) * factors[1])
    if saturation:
        grey = _grey(pixels)
        pixels = clipped(grey + (pixels - grey) * factors[2])
    return {**batch, key: pixels}


def _grey(pixels: jax.Array) -> jax.Array:
    return pixels if pixels.shape[-1] == 1 else (pixels * _LUMA).sum(axis=-1, keepdims=True)


def normalize(
    images: jax.Array, statistics: str | tuple[Sequence[float], Sequence[float]] = "imagenet", dtype: Any = jnp.float32
) -> jax.Array:
    """(images / 255 - mean) / deviation per channel, in `dtype`; computed in float32.

    Deterministic: call it in the loss and in the prediction. images: levels 0..255, uint8 or float, channels last.
    statistics: "imagenet" (RGB); "inception", to -1..1; "unit", to 0..1; or means and deviations per channel, as
    fractions of 255."""
    if isinstance(statistics, str):
        if statistics not in STATISTICS:
            raise OptionError(
                f"unknown statistics={statistics!r}.{did_you_mean(statistics, STATISTICS)} Known: "
                f"{', '.join(STATISTICS)}; or give (means, deviations)."
            )
        statistics = STATISTICS[statistics]
    mean, deviation = (np.asarray(values, np.float32) for values in statistics)
    if not deviation.all():
        raise OptionError(f"the deviations {deviation.tolist()} must not be 0.")
    for values in (mean, deviation):
        if values.shape not in ((1,), images.shape[-1:]):
            raise InputError(
                f"normalize: images of the shape {list(images.shape)} have {images.shape[-1]} channels, the statistics "
                f"{values.size}. Give one value per channel, or one for all, such as 'inception'."
            )
    return ((images.astype(jnp.float32) - mean * 255) / (deviation * 255)).astype(dtype)
