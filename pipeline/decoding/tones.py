"""Changes of uint8 images [h, w, c], grey or RGB: colours with the same levels as Pillow's ImageOps and ImageEnhance;
translation, shear and rotation with the same pixels as Pillow, the nearest one, and 0 outside.

Coordinates are integers, scaled by 2 ** 16, as in Pillow: no pixel depends on a machine's rounding. (cv2.warpAffine
differs from Pillow in about one pixel per thousand.) No function writes into its image; some return it."""

import math
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pipeline.decoding.opencv import cv2

# Pillow's integer luma and its rounding, divided by 2 ** 16. Products with a byte and their sums fit in 24 bits, so
# float32 is exact.
_LUMA = np.array([[19595, 38470, 7471, 2**15]], np.float32) / 2**16
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_LEVELS = np.arange(256, dtype=np.float32)
_SAME = np.arange(256, dtype=np.uint8)
MAX_SIDES = 16_384  # height plus width: above, coordinates overflow int32


def autocontrast(image: np.ndarray) -> np.ndarray:
    """Each channel stretched to 0..255."""
    return _by_channel(image, _stretching)


def equalized(image: np.ndarray) -> np.ndarray:
    """Each channel with about the same number of pixels at every level."""
    return _by_channel(image, _equalizing)


def solarized(image: np.ndarray, threshold: int) -> np.ndarray:
    """Inverts levels of at least `threshold`, 0..256."""
    return image ^ -(image >= threshold).view(np.uint8)  # -1 is 255. A lookup takes three times as long


def posterized(image: np.ndarray, mask: np.uint8) -> np.ndarray:
    """Keeps only the bits of `mask`."""
    return image & mask


def colour(image: np.ndarray, factor: np.float32) -> np.ndarray:
    """Blends with the grey image by `factor`: 0 is grey, 1 the image."""
    if image.shape[2] == 1:
        return image
    values = image.astype(np.float32)
    return _blended(cv2.cvtColor(_luma(values), cv2.COLOR_GRAY2RGB), values, factor)


def contrast(image: np.ndarray, factor: np.float32) -> np.ndarray:
    """Blends with the mean luma: 0 is constant, 1 the image."""
    luma = image if image.shape[2] == 1 else _luma(image.astype(np.float32)).astype(np.uint8)
    mean = (2 * int(cv2.sumElems(luma)[0]) + luma.size) // (2 * luma.size)
    return _looked_up(image, _blended(np.float32(mean), _LEVELS, factor))


def brightness(image: np.ndarray, factor: np.float32) -> np.ndarray:
    """Blends with black: 0 is black, 1 the image."""
    return _looked_up(image, _blended(np.float32(0), _LEVELS, factor))


def sharpness(image: np.ndarray, factor: np.float32) -> np.ndarray:
    """Blends with a smoothed image, in which a pixel has weight 5 and each neighbour 1. Keeps the border."""
    if min(image.shape[:2]) < 3:
        return image
    values = image.astype(np.float32)
    smooth = cv2.filter2D(values, -1, _SMOOTH).reshape(image.shape)
    np.rint(smooth, out=smooth)  # no sum is close to a tie
    result = image.copy()
    result[1:-1, 1:-1] = _blended(smooth, values, factor)[1:-1, 1:-1]
    return result


def _by_channel(image: np.ndarray, table_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Looks up each channel, uint8 [h, w], in the table that table_of makes from it, uint8 [256]."""
    channels = [cv2.LUT(channel, table_of(channel)) for channel in cv2.split(image)]
    return cv2.merge(channels).reshape(image.shape)


def _stretching(channel: np.ndarray) -> np.ndarray:
    least, greatest = int(channel.min()), int(channel.max())
    if least == greatest:
        return _SAME
    scale = 255.0 / (greatest - least)
    stretched = _SAME * scale - least * scale  # float64, like Pillow, which truncates, so the last bit matters
    return stretched.clip(0, 255).astype(np.uint8)


def _equalizing(channel: np.ndarray) -> np.ndarray:
    # float32, exact up to 2 ** 24 pixels per level. np.bincount takes three times as long.
    counts = cv2.calcHist([channel], [0], None, [256], [0, 256]).reshape(-1).astype(np.int64)
    step = int(channel.size - counts[channel.max()]) // 255
    if step == 0:
        return _SAME
    darker = counts.cumsum() - counts
    return ((step // 2 + darker) // step).clip(0, 255).astype(np.uint8)


def _looked_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    return cv2.LUT(image, table).reshape(image.shape)


def _blended(base: np.ndarray | np.float32, values: np.ndarray, factor: np.float32) -> np.ndarray:
    """Pillow's blend: float32, in this order of operations, truncated to uint8."""
    blend = values - base
    blend *= factor
    blend += base
    return blend.clip(0, 255, out=blend).astype(np.uint8)


def _luma(values: np.ndarray) -> np.ndarray:
    """The luma of float32 RGB [h, w, 3], rounded: float32 [h, w]."""
    return np.floor(cv2.transform(values, _LUMA))


def rotated(image: np.ndarray, degrees: float) -> np.ndarray:
    """Counterclockwise about the centre."""
    height, width, _ = image.shape
    cos, sin = (round(f(math.radians(-degrees)), 15) for f in (math.cos, math.sin))
    x, y = width / 2, height / 2
    corner = x - cos * x - sin * y + (cos + sin) * 0.5, y + sin * x - cos * y + (cos - sin) * 0.5
    along = np.outer(np.arange(width, dtype=np.int32), _fixed_point(cos, -sin)).reshape(-1)
    down = np.outer(np.arange(height, dtype=np.int32), _fixed_point(sin, cos)) + _fixed_point(*corner)
    # Rows [h, w * 2] of x and y in turn: NumPy broadcasts slowly over an innermost axis of 2. In place saves a third.
    sources = np.tile(down, width)
    sources += along
    sources >>= 16
    sources = sources.astype(np.int16).reshape(height, width, 2)
    return cv2.remap(image, sources, np.empty(0), cv2.INTER_NEAREST).reshape(image.shape)


def sheared_x(image: np.ndarray, share: float) -> np.ndarray:
    """Moves each row left by `share` times its y. Takes a third of the time of cv2.remap and its coordinates."""
    height, width, channels = image.shape
    step, first = _fixed_point(share, (1 + share) * 0.5)
    left = ((np.arange(height) * step + first) >> 16).clip(-width, width)
    framed = np.zeros((height, 3, width * channels), np.uint8)
    framed[:, 1] = image.reshape(height, -1)
    windows = sliding_window_view(framed.reshape(height, -1), width * channels, 1)
    return windows[np.arange(height), (width + left) * channels].reshape(image.shape)


def sheared_y(image: np.ndarray, share: float) -> np.ndarray:
    """Moves each column up by `share` times its x."""
    height, width, channels = image.shape
    sheared = sheared_x(cv2.transpose(image).reshape(width, height, channels), share)
    return cv2.transpose(sheared).reshape(image.shape)


def moved(image: np.ndarray, axis: int, by: int) -> np.ndarray:
    """The image moved down (axis 0) or right (axis 1) by `by` pixels, or up or left if negative."""
    result = np.zeros(image.shape, np.uint8)
    size = image.shape[axis]
    by = min(max(by, -size), size)
    begin, end = max(by, 0), size + min(by, 0)
    result.swapaxes(0, axis)[begin:end] = image.swapaxes(0, axis)[begin - by : end - by]
    return result


def _fixed_point(*values: float) -> np.ndarray:
    """The values scaled by 2 ** 16: int32."""
    return np.array([math.floor(value * 2**16 + 0.5) for value in values], np.int32)
