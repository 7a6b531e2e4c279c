"""Augmentation on the device: functions batch -> batch for a Task's `augment`, and normalization
for its loss.

    def augment(batch):
        batch = color_jitter(batch, "image", brightness=0.4, contrast=0.4, saturation=0.4)
        return cutmix(one_hot(batch, "label", num_classes=1000, smoothing=0.1), "image")

The random numbers of a record depend only on its `_seed`, a hash of seed, epoch and record: not on
devices, hosts or resumes. mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019) mix pairs of
records. The partner of row i of a global batch of B is row (i + B // 2) mod B, from another part of
the data: independent of hosts, devices and order of arithmetic, and devices exchange contiguous
parts of the batch, once. Rows that do not count are not mixed. Where the task has a Target and a
record of the batch has no label, all mixed labels are NaN, so the step ends with a NanError: leave
such records out of the training data, or do not mix."""

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import threefry_2x32
from scipy.special import betaincinv

from pipeline.checks import check_number, did_you_mean
from pipeline.errors import InputError, OptionError
from pipeline.spec import MASK
from trainer.inputs import SEED
from trainer.metrics.labels import counting
from trainer.models.pixels import STATISTICS
from trainer.task import Batch

__all__ = ["color_jitter", "cutmix", "mixup", "normalize", "one_hot", "random_erasing"]

_BETA_BITS = 12

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def uniform(batch: Batch, stream: str, count: int) -> Array:
    """float32 [b, count], uniform in [0, 1): Threefry-2x32 of each record's `_seed` and the
    stream's name.

    Streams with different names are independent; equal names give equal numbers. Raises InputError
    for a batch without `_seed`."""
    if SEED not in batch:
        raise InputError(
            f"{stream} draws from {SEED}, which the batch does not have; it has "
            f"{', '.join(sorted(batch))}. Use train_dataset, which delivers it, or let your "
            f"iterable deliver {SEED}: uint32 [b, 2], different for each record and epoch."
        )
    # The hash itself, because streams of jax.random depend on flags and versions.
    counts = np.concatenate([np.arange(count), np.full(count, zlib.crc32(stream.encode()))]).astype(
        np.uint32
    )
    bits = jax.vmap(lambda seed: threefry_2x32((seed[0], seed[1]), counts)[:count])(batch[SEED])
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def beta(u: Array, alpha: float) -> Array:
    """float32 with the distribution Beta(alpha, alpha), from uniform numbers `u` in [0, 1).

    From a table of 4,096 quantiles, because rejection algorithms change between versions."""
    return jnp.asarray(_quantiles(alpha))[(u * 2**_BETA_BITS).astype(jnp.int32)]


@functools.cache
def _quantiles(alpha: float) -> np.ndarray:
    middles = (np.arange(2**_BETA_BITS) + 0.5) / 2**_BETA_BITS
    return np.round(betaincinv(alpha, alpha, middles) * 2**20).astype(np.float32) / np.float32(
        2**20
    )


def images_of(batch: Batch, key: str, op: str, channels: tuple[int, ...] | None = None) -> Array:
    """batch[key]. Raises InputError, which names the op, unless it has 4 dimensions and one of
    these channel counts."""
    if key not in batch:
        raise InputError(
            f"{op} reads {key!r}, which the batch does not have.{did_you_mean(key, batch)}"
        )
    images = batch[key]
    if images.ndim != 4:
        raise InputError(
            f"{op}: {key!r} is {images.dtype} {list(images.shape)}; it must be images [b, height, "
            "width, channels]."
        )
    if channels and images.shape[-1] not in channels:
        allowed = " or ".join(map(str, channels))
        raise InputError(f"{op}: {key!r} has {images.shape[-1]} channels; it must have {allowed}.")
    return images


def clipped(values: Any) -> Array:
    """Clips to 0..255, the range of levels."""
    return jnp.clip(values, 0.0, 255.0)


def inside(top: Array, left: Array, height: Array, width: Array, images: Array) -> Array:
    """bool [b, h, w, 1]: the pixels of `images` in each record's rectangle, which the four int32
    [b] define."""

    def along(start: Array, length: Array, size: int) -> Array:
        places = jnp.arange(size)
        return (places >= start[:, None]) & (places < (start + length)[:, None])

    rows = along(top, height, images.shape[1])
    columns = along(left, width, images.shape[2])
    return (rows[:, :, None] & columns[:, None, :])[..., None]


def color_jitter(
    batch: Batch,
    key: str = "image",
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    stream: str = "color_jitter",
) -> Batch:
    """Changes brightness, then contrast, then saturation, each by a factor uniform in [max(0, 1 -
    x), 1 + x].

    Contrast scales the distance from the image's mean grey, saturation that from each pixel's grey.
    key: images [b, h, w, 1 or 3] with levels 0..255, uint8 or float; they become float32 in 0..255,
    not rounded. stream: use a different name for a second jitter of the same batch."""
    amounts = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
    for name, amount in amounts.items():
        check_number(f"color_jitter: {name}", amount, at_least=0, below=math.inf)
    pixels = images_of(batch, key, "color_jitter", (3,) if saturation else (1, 3)).astype(
        jnp.float32
    )
    drawn = uniform(batch, stream, 3)
    ranges = [(max(0.0, 1 - amount), 1 + amount) for amount in amounts.values()]
    factors = [
        (low + drawn[:, i] * (high - low))[:, None, None, None]
        for i, (low, high) in enumerate(ranges)
    ]
    if brightness:
        pixels = clipped(pixels * factors[0])
    if contrast:
        mean = _grey(pixels).mean(axis=(1, 2, 3), keepdims=True)
        pixels = clipped(mean + (pixels - mean) * factors[1])
    if saturation:
        grey = _grey(pixels)
        pixels = clipped(grey + (pixels - grey) * factors[2])
    return {**batch, key: pixels}


def _grey(pixels: Array) -> Array:
    return pixels if pixels.shape[-1] == 1 else (pixels * _LUMA).sum(axis=-1, keepdims=True)


def normalize(
    images: Array,
    statistics: str | tuple[Sequence[float], Sequence[float]] = "imagenet",
    dtype: Any = jnp.float32,
) -> Array:
    """(images / 255 - mean) / deviation per channel, in `dtype`; computed in float32.

    Deterministic: call it in the loss and in the prediction. images: levels 0..255, uint8 or float,
    channels last. statistics: "imagenet" (RGB); "inception", to -1..1; "unit", to 0..1; or means
    and deviations per channel, as fractions of 255."""
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
                f"normalize: images of the shape {list(images.shape)} have {images.shape[-1]} "
                f"channels, the statistics {values.size}. Give one value per channel, or one for "
                "all, such as 'inception'."
            )
    return ((images.astype(jnp.float32) - mean * 255) / (deviation * 255)).astype(dtype)


def one_hot(
    batch: Batch,
    key: str,
    num_classes: int,
    *,
    base: int = 0,
    smoothing: float = 0.0,
    into: str = "labels",
) -> Batch:
    """Sets `into` to float32 [b, num_classes]: 1 - smoothing for the record's class, plus smoothing
    / num_classes for every class (label smoothing, Szegedy et al. 2015,
    https://arxiv.org/abs/1512.00567).

    key: integers [b]; class 0 is the label `base`. A label outside the classes gets only the second
    term."""
    check_number("one_hot: smoothing", smoothing, at_least=0, below=1)
    if key not in batch:
        raise InputError(
            f"one_hot reads {key!r}, which the batch does not have.{did_you_mean(key, batch)}"
        )
    hot = jax.nn.one_hot(batch[key] - base, num_classes)
    return {**batch, into: hot * (1 - smoothing) + smoothing / num_classes}


def mixup(
    batch: Batch,
    key: str = "image",
    labels: str = "labels",
    *,
    alpha: float = 0.2,
    stream: str = "mixup",
) -> Batch:
    """Sets images and labels to weight * own + (1 - weight) * partner's, with weights from
    Beta(alpha, alpha).

    Every record draws its own weight. key: images [b, h, w, c] of any dtype; they become float32.
    labels: float [b, classes], see one_hot. https://arxiv.org/abs/1710.09412 Integer labels remain
    those of the record itself, even if its weight is below 0.5. Training accuracy therefore counts
    only a record's own class as right, and is lower than in an evaluation."""
    pixels, soft = _checked(batch, key, labels, alpha, "mixup")
    images = pixels.astype(jnp.float32)
    drawn = beta(uniform(batch, stream, 1)[:, 0], alpha)
    weight = jnp.where(_paired(batch), drawn, 1.0)
    return {
        **batch,
        key: _mixed(images, weight[:, None, None, None]),
        labels: _mixed(soft, weight[:, None]),
    }


def cutmix(
    batch: Batch,
    key: str = "image",
    labels: str = "labels",
    *,
    alpha: float = 1.0,
    stream: str = "cutmix",
) -> Batch:
    """Replaces a rectangle of each image with its partner's, and mixes labels in proportion to the
    areas.

    The rectangle has 1 - weight of the image's area, with weights from Beta(alpha, alpha), and the
    image's aspect ratio. Its centre is uniform; parts outside of the image are cut off and do not
    count for the labels. key: images [b, h, w, c]; keeps their dtype. labels: float [b, classes],
    see one_hot. https://arxiv.org/abs/1905.04899 Training accuracy: see mixup."""
    images, soft = _checked(batch, key, labels, alpha, "cutmix")
    drawn, y, x = uniform(batch, stream, 3).T
    side = jnp.where(_paired(batch), jnp.sqrt(1 - beta(drawn, alpha)), 0.0)
    rows, columns = images.shape[1:3]
    top, height = _span(y, side, rows)
    left, width = _span(x, side, columns)
    weight = 1 - (height * width).astype(jnp.float32) / (rows * columns)
    pasted = jnp.where(inside(top, left, height, width, images), _partners(images), images)
    return {**batch, key: pasted, labels: _mixed(soft, weight[:, None])}


def _span(centre: Array, side: Array, size: int) -> tuple[Array, Array]:
    """(start, length), int32 [b], of the part within 0..size."""
    length = (size * side).astype(jnp.int32)
    start = (centre * size).astype(jnp.int32) - length // 2
    first = jnp.clip(start, 0, size)
    last = jnp.clip(start + length, 0, size)
    return first, last - first


def _mixed(own: Array, weight: Array) -> Array:
    return jnp.where(weight < 1, own * weight + _partners(own) * (1 - weight), own)


def _partners(values: Array) -> Array:
    return jnp.roll(values, -(values.shape[0] // 2), axis=0)


def _paired(batch: Batch) -> Array:
    counts = batch[MASK] > 0
    return counts & _partners(counts)


def _checked(batch: Batch, key: str, labels: str, alpha: float, op: str) -> tuple[Array, Array]:
    """The images, and the labels: NaN if a record has none."""
    check_number(f"{op}: alpha", alpha, above=0, below=math.inf)
    soft = batch.get(labels)
    if soft is None or soft.ndim != 2 or not jnp.issubdtype(soft.dtype, jnp.floating):
        actual = "not in the batch" if soft is None else f"{soft.dtype} {list(soft.shape)}"
        raise InputError(
            f"{op} mixes {labels!r}, which is {actual}; it must be float [b, classes]. Call "
            "one_hot first."
        )
    unlabelled = (batch[MASK] > 0) & ~(counting(batch) > 0)
    return images_of(batch, key, op), jnp.where(jnp.any(unlabelled), jnp.nan, soft)


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

    area: share of the image's area, uniform. ratio: height / width, log-uniform. Sides are limited
    to those of the image. The position in the image is uniform. key: images [b, h, w, c]; keeps
    their dtype. stream: use a different name for a second erasing of the same batch."""
    if not (0 <= probability <= 1 and 0 < area[0] <= area[1] <= 1 and 0 < ratio[0] <= ratio[1]):
        raise OptionError(
            f"random_erasing: probability={probability}, area={area}, ratio={ratio}. probability "
            "must be in 0..1, area two ascending numbers in (0, 1], ratio two ascending numbers "
            "above 0."
        )
    images = images_of(batch, key, "random_erasing")
    rows, columns = images.shape[1:3]
    chance, of_area, of_ratio, y, x = uniform(batch, stream, 5).T
    pixels = rows * columns * (area[0] + of_area * (area[1] - area[0]))
    low = math.log(ratio[0])
    high = math.log(ratio[1])
    side = jnp.exp((low + of_ratio * (high - low)) / 2)
    height = jnp.clip(jnp.round(jnp.sqrt(pixels) * side).astype(jnp.int32), 1, rows)
    width = jnp.clip(jnp.round(jnp.sqrt(pixels) / side).astype(jnp.int32), 1, columns)
    top = jnp.floor(y * (rows - height + 1)).astype(jnp.int32)
    left = jnp.floor(x * (columns - width + 1)).astype(jnp.int32)
    box = inside(top, left, jnp.where(chance < probability, height, 0), width, images)
    return {**batch, key: jnp.where(box, jnp.asarray(value, images.dtype), images)}
