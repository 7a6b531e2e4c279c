"""Mixes pairs of records, or erases parts of them: mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019), with
the labels they need; and random erasing.

The partner of row i of a global batch of B is row (i + B // 2) mod B, from another part of the data: independent of
hosts, devices and order of arithmetic, and devices exchange contiguous parts of the batch, once. Rows that do not count
are not mixed."""

import math

import jax
import jax.numpy as jnp

from pipeline.errors import InputError, OptionError, did_you_mean
from trainer.augmentation.draws import beta, uniform
from trainer.augmentation.images import images_of, inside, per_record
from trainer.inputs import MASK
from trainer.task import Batch

__all__ = ["cutmix", "mixup", "one_hot", "random_erasing"]


def one_hot(
    batch: Batch, key: str, num_classes: int, *, base: int = 0, smoothing: float = 0.0, into: str = "labels"
) -> Batch:
    """Sets `into` to float32 [b, num_classes]: 1 - smoothing for the record's class, plus smoothing / num_classes for
    every class (label smoothing, Szegedy et al. 2015, https://arxiv.org/abs/1512.00567).

    key: integers [b]; class 0 is the label `base`. A label outside the classes gets only the second term."""
    if not 0 <= smoothing < 1:
        raise OptionError(f"one_hot: smoothing={smoothing} must be at least 0 and below 1.")
    if key not in batch:
        raise InputError(f"one_hot reads {key!r}, which the batch does not have.{did_you_mean(key, batch)}")
    hot = jax.nn.one_hot(batch[key] - base, num_classes)
    return {**batch, into: hot * (1 - smoothing) + smoothing / num_classes}


def mixup(
    batch: Batch, key: str = "image", labels: str = "labels", *, alpha: float = 0.2, stream: str = "mixup"
) -> Batch:
    """Sets images and labels to weight * own + (1 - weight) * partner's, with weights from Beta(alpha, alpha).

    Every record draws its own weight. key: images [b, h, w, c] of any dtype; they become float32. labels: float
    [b, classes], see one_hot. https://arxiv.org/abs/1710.09412
    Integer labels remain those of the record itself, even if its weight is below 0.5. Training accuracy therefore
    counts only a record's own class as right, and is lower than in an evaluation."""
    images = _checked(batch, key, labels, alpha, "mixup").astype(jnp.float32)
    drawn = beta(uniform(batch, stream, 1)[:, 0], alpha)
    weight = jnp.where(_paired(batch), drawn, 1.0)
    return {**batch, key: _mixed(images, per_record(weight, images)), labels: _mixed(batch[labels], weight[:, None])}


def cutmix(
    batch: Batch, key: str = "image", labels: str = "labels", *, alpha: float = 1.0, stream: str = "cutmix"
) -> Batch:
    """Replaces a rectangle of each image with its partner's, and mixes labels in proportion to the areas.

    The rectangle has 1 - weight of the image's area, with weights from Beta(alpha, alpha), and the image's aspect
    ratio. Its centre is uniform; parts outside of the image are cut off and do not count for the labels. key: images
    [b, h, w, c]; keeps their dtype. labels: float [b, classes], see one_hot. https://arxiv.org/abs/1905.04899
    Training accuracy: see mixup."""
    images = _checked(batch, key, labels, alpha, "cutmix")
    drawn, y, x = uniform(batch, stream, 3).T
    side = jnp.where(_paired(batch), jnp.sqrt(1 - beta(drawn, alpha)), 0.0)
    rows, columns = images.shape[1:3]
    top, height = _span(y, side, rows)
    left, width = _span(x, side, columns)
    weight = 1 - (height * width).astype(jnp.float32) / (rows * columns)
    pasted = jnp.where(inside(top, left, height, width, images), _partners(images), images)
    return {**batch, key: pasted, labels: _mixed(batch[labels], weight[:, None])}


def _span(centre: jax.Array, side: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """(start, length), int32 [b], of the part within 0..size."""
    length = (size * side).astype(jnp.int32)
    start = (centre * size).astype(jnp.int32) - length // 2
    first, last = jnp.clip(start, 0, size), jnp.clip(start + length, 0, size)
    return first, last - first


def _mixed(own: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(weight < 1, own * weight + _partners(own) * (1 - weight), own)


def _partners(values: jax.Array) -> jax.Array:
    return jnp.roll(values, -(values.shape[0] // 2), axis=0)


def _paired(batch: Batch) -> jax.Array:
    counts = batch[MASK] > 0
    return counts & _partners(counts)


def _checked(batch: Batch, key: str, labels: str, alpha: float, op: str) -> jax.Array:
    if not 0 < alpha < math.inf:
        raise OptionError(f"{op}: alpha={alpha} must be above 0, and finite.")
    soft = batch.get(labels)
    if soft is None or soft.ndim != 2 or not jnp.issubdtype(soft.dtype, jnp.floating):
        found = "not in the batch" if soft is None else f"{soft.dtype} {list(soft.shape)}"
        raise InputError(f"{op} mixes {labels!r}, which is {found}; it must be float [b, classes]. Call one_hot first.")
    return images_of(batch, key, op)


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
    """Sets a rectangle of each image to `value`, with this probability (Zhong et al. 2017,
    https://arxiv.org/abs/1708.04896).

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
