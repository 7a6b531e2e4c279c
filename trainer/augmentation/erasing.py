"""Random erasing (Zhong et al. 2017, https://arxiv.org/abs/1708.04896)."""

import math

import jax.numpy as jnp

from pipeline.errors import OptionError
from trainer.augmentation.draws import uniform
from trainer.augmentation.images import images_of, inside
from trainer.task import Batch

__all__ = ["random_erasing"]


def random_erasing(
    batch: Batch,
    key: str = "image",
    *,
    probability: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    ratio: tuple[float, float] = (0.3, 1 / 0.3),
    value: float = 0.0,
    stream: str = "random_erasing",
) -> Batch:
    """Sets a rectangle of each image to `value`, with this probability.

    area: share of the image's area, uniform. ratio: height / width, log-uniform. Sides are limited to those of the
    image. The position in the image is uniform. key: images [b, h, w, c]; keeps their dtype. stream: use a different
    name for a second erasing of the same batch."""
    if not (0 <= probability <= 1 and 0 < area[0] <= area[1] <= 1 and 0 < ratio[0] <= ratio[1]):
        raise OptionError(
            f"random_erasing: probability={probability}, area={area}, ratio={ratio}. probability must be in 0..1, "
            "area two ascending numbers in (0, 1], ratio two ascending numbers above 0."
        )
    images = images_of(batch, key, "random_erasing")
    rows, columns = images.shape[1:3]
    chance, of_area, of_ratio, y, x = uniform(batch, stream, 5).T
    pixels = rows * columns * (area[0] + of_area * (area[1] - area[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    side = jnp.exp((low + of_ratio * (high - low)) / 2)
    height = jnp.clip(jnp.round(jnp.sqrt(pixels) * side).astype(jnp.int32), 1, rows)
    width = jnp.clip(jnp.round(jnp.sqrt(pixels) / side).astype(jnp.int32), 1, columns)
    top = jnp.floor(y * (rows - height + 1)).astype(jnp.int32)
    left = jnp.floor(x * (columns - width + 1)).astype(jnp.int32)
    box = inside(top, left, jnp.where(chance < probability, height, 0), width, images)
    return {**batch, key: jnp.where(box, jnp.asarray(value, images.dtype), images)}
