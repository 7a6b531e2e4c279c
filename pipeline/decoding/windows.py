"""Windows of an image: random ones, from a record's seed and the image's size, and central ones.

Computed in integers and in float64 with +, -, *, / and square roots, which IEEE 754 defines to the last bit: the same
window on any machine. Logarithms, which it does not define, are in a table."""

import math
from typing import Any

import numpy as np

from pipeline.tf_cpu import tf

__all__ = ["central_square", "random_bits", "random_window", "resized_short", "whole"]

TRIES = 10
_RATIOS = 4096


def random_bits(seed: Any, count: int) -> Any:
    """uint32 [count], uniform: Philox4x32-10 (Salmon et al. 2011) with the seed, int32 [2], as its key."""
    key = tf.bitcast(seed, tf.uint64)[None]
    counter = tf.zeros(2, tf.uint64)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=[count], key=key, counter=counter, alg=1, dtype=tf.uint32)


def random_window(size: Any, bits: Any, area: tuple[float, float], ratio: tuple[float, float]) -> Any:
    """int32 [4], y, x, height, width: the window of a random resized crop, like torchvision's.

    area: of the window as a fraction of the image's, uniform. ratio: width / height, uniform in its logarithm. The
    first of ten draws that fits into the image is placed uniformly; if none fits, the window is the largest central one
    with a ratio within the bounds. size: int32 [2]. bits: uint32 [4 * TRIES]."""
    height, width = tf.unstack(tf.cast(size, tf.float64))
    uniform = tf.reshape(tf.cast(bits, tf.float64) * 2.0**-32, [4, TRIES])
    root = tf.sqrt(height * width * (area[0] + uniform[0] * (area[1] - area[0])))
    side = tf.gather(_roots_of_ratios(ratio), tf.cast(uniform[1] * _RATIOS, tf.int32))
    drawn = tf.stack([tf.round(root / side), tf.round(root * side)])  # [2, TRIES]
    room = tf.stack([height, width])[:, None] - drawn
    fits = tf.reduce_all((room >= 0) & (drawn >= 1), axis=0)
    corner = tf.floor(uniform[2:] * (room + 1))
    first = tf.argmax(tf.cast(fits, tf.int32))  # the first maximum
    placed = tf.gather(tf.concat([corner, drawn], 0), first, axis=1)
    central = _central_within(height, width, ratio)
    return tf.cast(tf.where(tf.reduce_any(fits), placed, central), tf.int32)


def _roots_of_ratios(ratio: tuple[float, float]) -> np.ndarray:
    """Square roots of ratios, uniform in their logarithm: the midpoints of equal intervals, rounded to 24 bits."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    middles = [low + (i + 0.5) / _RATIOS * (high - low) for i in range(_RATIOS)]
    return np.array([round(math.exp(middle / 2) * 2**24) / 2**24 for middle in middles])


def _central_within(height: Any, width: Any, ratio: tuple[float, float]) -> Any:
    h = tf.maximum(tf.minimum(height, tf.round(width / ratio[0])), 1.0)
    w = tf.maximum(tf.minimum(width, tf.round(height * ratio[1])), 1.0)
    return tf.stack([tf.floor((height - h) / 2), tf.floor((width - w) / 2), h, w])


def central_square(size: Any, crop: int, border: int) -> Any:
    """int32 [4]: the central square that is crop / (crop + border) of the shorter side, like tensorflow/tpu."""
    # float32, as in https://github.com/tensorflow/tpu/blob/master/models/official/resnet/resnet_preprocessing.py
    shorter = tf.cast(tf.reduce_min(size), tf.float32)
    side = tf.maximum(tf.cast(np.float32(crop / (crop + border)) * shorter, tf.int32), 1)
    return tf.concat([(size - side + 1) // 2, [side, side]], 0)


def resized_short(size: Any, shorter: int) -> Any:
    """int32 [2]: the size whose shorter side is `shorter`. Keeps the ratio like big_vision, in float32."""
    ratio = tf.cast(shorter, tf.float32) / tf.cast(tf.reduce_min(size), tf.float32)
    return tf.cast(tf.round(tf.cast(size, tf.float32) * ratio), tf.int32)


def whole(size: Any) -> Any:
    """int32 [4]: the complete image."""
    return tf.concat([[0, 0], size], 0)
