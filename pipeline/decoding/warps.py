"""Translation, shear and rotation of images: the nearest pixel, and 0 outside; the same pixels as Pillow.

Coordinates are integers, scaled by 2 ** 16, as in Pillow: no pixel depends on a machine's rounding."""

import math
from typing import Any

import numpy as np

from pipeline.tf_cpu import tf

__all__ = ["MAX_SIDES", "Matrix", "fixed_point", "moved", "rotation", "warped"]

MAX_SIDES = 16_384  # height plus width: above, coordinates overflow int32

Matrix = tuple[float, float, float, float, float, float]  # source x = a x + b y + c, source y = d x + e y + f


def rotation(degrees: float, height: int, width: int) -> Matrix:
    """Counterclockwise about the centre."""
    cos, sin = (round(f(math.radians(-degrees)), 15) for f in (math.cos, math.sin))
    x, y = width / 2, height / 2
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


def fixed_point(matrix: Matrix) -> list[int]:
    """The matrix scaled by 2 ** 16, for coordinates of pixel centres."""
    a, b, c, d, e, f = matrix
    return [math.floor(v * 2**16 + 0.5) for v in (a, b, c + (a + b) * 0.5, d, e, f + (d + e) * 0.5)]


def warped(image: Any, matrix: Any) -> Any:
    """The image transformed by `matrix`, int32 [6] from fixed_point; keeps shape and dtype."""
    height, width, channels = image.shape
    a, b, c, d, e, f = tf.unstack(matrix)
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, None]
    one = 2**16  # a frame of zeros is one pixel wide
    column = tf.clip_by_value(tf.bitwise.right_shift(x * a + (y * b + (c + one)), 16), 0, width + 1)
    row = tf.clip_by_value(tf.bitwise.right_shift(x * d + (y * e + (f + one)), 16), 0, height + 1)
    framed = tf.pad(tf.reshape(image, [height, width * channels]), [[1, 1], [channels, channels]])
    return tf.gather(tf.reshape(framed, [-1, channels]), row * (width + 2) + column)


def moved(image: Any, by: Any, most: int) -> Any:
    """The image moved down and right by `by`, int32 [2] of at most `most`; keeps shape and dtype."""
    height, width, channels = image.shape
    rows = tf.reshape(image, [height, width * channels])  # padding the three axes takes four times as long
    padded = tf.pad(rows, [[most, most], [most * channels] * 2])
    begin = (most - by) * np.array([1, channels], np.int32)
    return tf.reshape(tf.slice(padded, begin, rows.shape), image.shape)
