"""Two records into one: mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019), with the labels they need.

The partner of row i of a global batch of B is row (i + B // 2) mod B, of another part of the data: no host, device or
order of arithmetic matters to it, and devices exchange whole parts of the batch, once. A row that does not count mixes
with none, and none with it."""

import math

import jax
import jax.numpy as jnp

from pipeline.shards.errors import InputError, OptionError, did_you_mean
from trainer.augmentation.boxes import inside
from trainer.augmentation.draws import beta, uniform
from trainer.augmentation.images import images_of, per_record
from trainer.inputs import MASK
from trainer.task import Batch

__all__ = ["cutmix", "mixup", "one_hot"]


def one_hot(
    batch: Batch, key: str, num_classes: int, *, base: int = 0, smoothing: float = 0.0, into: str = "labels"
) -> Batch:
    """Sets `into` to float32 [b, num_classes]: 1 - smoothing for the record's class, and smoothing / num_classes more
    for every one (label smoothing, Szegedy et al. 2015, https://arxiv.org/abs/1512.00567).

    key: integers [b]; class 0 is the label `base`. A label of no class gets the second part only."""
    if not 0 <= smoothing < 1:
        raise OptionError(f"one_hot: smoothing={smoothing} must be within 0 and 1, and below 1.")
    if key not in batch:
        raise InputError(f"one_hot reads {key!r}, which the batch does not have.{did_you_mean(key, batch)}")
    hot = jax.nn.one_hot(batch[key] - base, num_classes)
    return {**batch, into: hot * (1 - smoothing) + smoothing / num_classes}


def mixup(
    batch: Batch, key: str = "image", labels: str = "labels", *, alpha: float = 0.2, stream: str = "mixup"
) -> Batch:
    """Sets images and labels to weight * own + (1 - weight) * partner's, the weight from Beta(alpha, alpha).

    Every record draws its own weight. key: images [b, h, w, c] of any dtype; they become float32. labels: float
    [b, classes], see one_hot. https://arxiv.org/abs/1710.09412
    Integer labels stay those of the record itself, even where its weight is below a half, so the accuracy of training
    counts a mixed record as right only if its own class is found: it is below that of an evaluation."""
    images = _checked(batch, key, labels, alpha, "mixup").astype(jnp.float32)
    drawn = beta(uniform(batch, stream, 1)[:, 0], alpha)
    weight = jnp.where(_paired(batch), drawn, 1.0)
    return {**batch, key: _mixed(images, per_record(weight, images)), labels: _mixed(batch[labels], weight[:, None])}


def cutmix(
    batch: Batch, key: str = "image", labels: str = "labels", *, alpha: float = 1.0, stream: str = "cutmix"
) -> Batch:
    """Replaces a rectangle of each image by its partner's, and labels by the parts of the area.

    The rectangle has 1 - weight of the image's area, the weight from Beta(alpha, alpha), and the image's shape; its
    centre lies anywhere, what is outside is cut off, and labels go by what is left. key: images [b, h, w, c]; their
    dtype stays. labels: float [b, classes], see one_hot. https://arxiv.org/abs/1905.04899
    What mixup says of the accuracy of training is so here, too."""
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
    """(start, length), int32 [b], of what lies within 0..size."""
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
        raise OptionError(f"{op}: alpha={alpha} must be a number above 0.")
    soft = batch.get(labels)
    if soft is None or soft.ndim != 2 or not jnp.issubdtype(soft.dtype, jnp.floating):
        found = "not in the batch" if soft is None else f"{soft.dtype} {list(soft.shape)}"
        raise InputError(
            f"{op} mixes {labels!r}, which is {found}; it must be float [b, classes]. Call one_hot before."
        )
    return images_of(batch, key, op)
