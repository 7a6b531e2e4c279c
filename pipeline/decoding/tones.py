"""Changes of uint8 images [h, w, c], grey or RGB: colours with the same levels as Pillow's ImageOps and ImageEnhance;
translation, shear and rotation with the same pixels as Pillow, the nearest one, and 0 outside.

Colours work on rows [h, w * c] where channels differ: TensorFlow broadcasts five times slower over an innermost axis of
3. Coordinates are integers, scaled by 2 ** 16, as in Pillow: no pixel depends on a machine's rounding."""

import math
from typing import Any

import numpy as np

from pipeline.tf_cpu import tf

# Pillow's integer luma, divided by 2 ** 16. Products with a byte and their sums have 24 bits: float32 is exact.
_LUMA = np.tile(np.array([[19595], [38470], [7471]], np.float32) / 2**16, 3)
MAX_SIDES = 16_384  # height plus width: above, coordinates overflow int32
Matrix = tuple[float, float, float, float, float, float]  # source x = a x + b y + c, source y = d x + e y + f


def autocontrast(image: Any) -> Any:
    """Each channel stretched to 0..255."""
    least, greatest = (tf.cast(extreme(image, [0, 1]), tf.float64) for extreme in (tf.reduce_min, tf.reduce_max))
    constant = greatest == least
    scale = tf.where(constant, tf.ones_like(least), 255.0 / (greatest - least))
    offset = tf.where(constant, tf.zeros_like(least), -least * scale)
    scale, offset = (tf.tile(of_channels, [image.shape[1]]) for of_channels in (scale, offset))
    values = tf.cast(_rows(image), tf.float64)  # like Pillow, whose cast truncates, so the last bit matters
    return _like(values * scale + offset, image)


def equalized(image: Any) -> Any:
    """Each channel with about the same number of pixels at every level."""
    height, width, channels = image.shape
    places = tf.cast(_rows(image), tf.int32) + np.tile(np.arange(channels, dtype=np.int32) * 256, width)
    counts = tf.raw_ops.Bincount(arr=tf.reshape(places, [-1]), size=256 * channels, weights=tf.zeros([0], tf.int32))
    counts = tf.reshape(counts, [channels, 256])
    greatest = tf.reduce_max(tf.where(counts > 0, np.arange(256, dtype=np.int32), 0), 1)
    step = (height * width - tf.gather(counts, greatest, batch_dims=1)[:, None]) // 255
    levels = (step // 2 + tf.cumsum(counts, 1, exclusive=True)) // tf.maximum(step, 1)
    levels = tf.where(step > 0, tf.minimum(levels, 255), np.arange(256, dtype=np.int32))
    return tf.reshape(tf.gather(tf.reshape(tf.cast(levels, tf.uint8), [-1]), places), image.shape)


def solarized(image: Any, threshold: Any) -> Any:
    """Inverts levels of at least `threshold`, int32 [] in 0..256."""
    inverted = tf.cast(tf.where(threshold < 256, 255, 0), tf.uint8)
    bright = image >= tf.cast(tf.minimum(threshold, 255), tf.uint8)
    return tf.bitwise.bitwise_xor(image, tf.cast(bright, tf.uint8) * inverted)  # tf.where takes four times as long


def posterized(image: Any, mask: Any) -> Any:
    """Keeps only the bits of `mask`, uint8 []."""
    return tf.bitwise.bitwise_and(image, mask)


def colour(image: Any, factor: Any) -> Any:
    """Blends with the grey image by `factor`, float32 []: 0 is grey, 1 the image."""
    if image.shape[2] == 1:
        return image
    values = _pixels(image)
    return _blended(_luma(values), values, factor, image)


def contrast(image: Any, factor: Any) -> Any:
    """Blends with the mean luma: 0 is constant, 1 the image."""
    values = _pixels(image)
    luma = values if image.shape[2] == 1 else _luma(values)
    total, count = tf.reduce_sum(tf.cast(luma, tf.int64)), values.shape.num_elements()
    mean = (2 * total + count) // (2 * count)
    return _blended(tf.cast(mean, tf.float32), values, factor, image)


def brightness(image: Any, factor: Any) -> Any:
    """Blends with black: 0 is black, 1 the image."""
    return _blended(0.0, _pixels(image), factor, image)


def sharpness(image: Any, factor: Any) -> Any:
    """Blends with a smoothed image, in which a pixel has weight 5 and each neighbour 1. Keeps the border."""
    height, width, c = image.shape
    if height < 3 or width < 3:
        return image
    rows = _rows(image)
    values = tf.cast(rows, tf.float32)
    three = values[:-2] + values[1:-1] + values[2:]
    centre = values[1:-1, c:-c]
    total = three[:, : -2 * c] + three[:, c:-c] + three[:, 2 * c :] + 4 * centre
    smooth = tf.floor(total * (1 / 13) + 0.5)  # no sum is close to a tie
    inner = _blended(smooth, centre, factor)
    middle = tf.concat([rows[1:-1, :c], inner, rows[1:-1, -c:]], 1)
    return tf.reshape(tf.concat([rows[:1], middle, rows[-1:]], 0), image.shape)


def _blended(base: Any, values: Any, factor: Any, image: Any = None) -> Any:
    """Pillow's blend: float32, in this order of operations, truncated."""
    blend = tf.clip_by_value(base + factor * (values - base), 0.0, 255.0)
    return tf.cast(blend, tf.uint8) if image is None else _like(blend, image)


def _luma(values: Any) -> Any:
    """The luma of float32 RGB [n, 3], in each of the three channels."""
    return tf.floor(tf.matmul(values, _LUMA) + 0.5)


def _pixels(image: Any) -> Any:
    return tf.reshape(tf.cast(image, tf.float32), [-1, image.shape[2]])


def _rows(image: Any) -> Any:
    height, width, channels = image.shape
    return tf.reshape(image, [height, width * channels])


def _like(values: Any, image: Any) -> Any:
    return tf.reshape(tf.cast(values, tf.uint8), image.shape)


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
