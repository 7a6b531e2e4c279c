"""Figures of a page: histograms and thumbnails."""

import base64
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from pipeline.raw.jpeg import UNREADABLE, open_image
from pipeline.sizes import counted, format_bytes, format_number

BINS = 40
PIXELS = 136  # of the longer side, as the page shows it
SMALL = 64  # an image below this size is enlarged, each pixel as a square
QUALITY = 80
LEAST_SIDE = 4  # pixels; a smaller array is probably not an image
CHANNELS = (1, 3)


class Picture(NamedTuple):
    """An image of `width` x `height` CSS pixels. source: a data: URI, see thumbnails. alt: what it
    shows, in words."""

    source: str
    alt: str
    width: int
    height: int
    pixelated: bool


class Histogram(NamedTuple):
    """How many numbers are in each bin: (its range, their number). low, high: of all numbers.
    summary: how many they are, and their median."""

    bins: Sequence[tuple[str, int]]
    low: str
    high: str
    summary: str


def histogram(values: np.ndarray, unit: str = "", note: str = "") -> Histogram:
    """How many of the numbers are in each of at most 40 bins; non-finite ones are left out, which
    its summary states.

    unit: what they are numbers of; bytes are shown as sizes. note: more of the summary."""
    finite = values[np.isfinite(values)].astype(np.float64)
    note = f"{note} {not_finite(len(values) - len(finite))}".strip()
    if not len(finite):
        return Histogram([], "", "", note or "No values.")
    shown, after = (format_bytes, "") if unit == "bytes" else (format_number, f" {unit}".rstrip())
    counts, edges = np.histogram(finite, _bins(finite))
    low, middle, high = (f"{shown(each)}{after}" for each in np.percentile(finite, [0, 50, 100]))
    summary = f"{counted(len(finite), 'value')}, median {middle}. {note}".strip()
    return Histogram([*zip(_names(edges, shown), counts.tolist(), strict=True)], low, high, summary)


def not_finite(count: int) -> str:
    """How many values a histogram leaves out, in a sentence; "" if none."""
    values_are = "values are" if count != 1 else "value is"
    return f"{count:,} {values_are} not finite and not shown." if count else ""


def _bins(finite: np.ndarray) -> Any:
    """The number of bins, or their edges: a bin for each integer, if these are few."""
    width = np.ptp(finite)
    resolution = np.spacing(np.abs(finite).max())
    if width < BINS and resolution < 0.5 and (finite == finite.round()).all():
        return np.arange(finite.min(), finite.max() + 2) - 0.5
    if width == 0 and resolution >= 0.5:  # a bin needs a width
        return finite[0] + resolution * np.array([-1, 1])
    return max(1, min(BINS, int(width / resolution)))


def _names(edges: np.ndarray, shown: Callable[[float], str]) -> list[str]:
    if (edges % 1 == 0.5).all() and (np.diff(edges) == 1).all():
        return [shown(edge + 0.5) for edge in edges[:-1].tolist()]
    ends = map(shown, edges.tolist())
    return [f"{low} to {high}" for low, high in itertools.pairwise(ends)]


def thumbnail(data: bytes, alt: str) -> Picture | None:
    """A picture of an encoded image; None if it cannot be decoded. About 4 KB."""
    try:
        with open_image(data) as image:
            if image.format == "EPS":  # Pillow would start Ghostscript on it
                return None
            # a large JPEG is decoded at a fraction of its size
            image.draft("RGB", (2 * PIXELS, 2 * PIXELS))
            if image.mode[0] in "IF":  # 16 or 32 bits; convert() would cut off all but 8
                return thumbnail_of_array(np.asarray(image), alt)
            return _picture(image, alt)
    except UNREADABLE:
        return None


def is_picture(array: np.ndarray) -> bool:
    """Whether the array has the shape of an image: [height, width] of uint8, or with 1 or 3
    channels first or last."""
    if array.ndim == 2:
        return array.dtype == np.uint8 and min(array.shape) >= LEAST_SIDE
    return array.ndim == 3 and _channels_last(array) is not None


def thumbnail_of_array(pixels: np.ndarray, alt: str) -> Picture:
    """A picture of an array that `is_picture`, or of one with four channels.

    uint8 is shown unchanged; other numbers are scaled so that the smallest is black and the largest
    white."""
    array = np.asarray(pixels)
    if array.ndim == 3 and (shown := _channels_last(array)) is not None:
        array = shown.squeeze(2) if shown.shape[2] == 1 else shown
    if array.dtype != np.uint8:
        array = array.astype(np.float64)  # a range of float32 may exceed its maximum
        finite = array[np.isfinite(array)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        array = np.nan_to_num(array, nan=low, posinf=high, neginf=low) - low
        array = (array * (255.0 / ((high - low) or 1.0))).round().astype(np.uint8)
    return _picture(Image.fromarray(array), alt)


def _channels_last(array: np.ndarray) -> np.ndarray | None:
    """The array as [height, width, 1 or 3]; None if it has no such shape."""
    for shown in (array, array.transpose(1, 2, 0)):
        if shown.shape[2] in CHANNELS and min(shown.shape[:2]) >= LEAST_SIDE:
            return shown
    return None


def _picture(image: Image.Image, alt: str) -> Picture:
    small = max(image.size) <= SMALL
    shown = image.convert("RGBA" if "A" in image.mode or "transparency" in image.info else "RGB")
    if not small:
        shown.thumbnail((PIXELS, PIXELS))
    kind = "png" if small or shown.mode == "RGBA" else "jpeg"
    sink = io.BytesIO()
    shown.save(sink, kind, optimize=kind == "png", quality=QUALITY)
    factor = PIXELS / max(shown.size)
    width, height = (max(1, round(side * factor)) for side in shown.size)
    source = f"data:image/{kind};base64,{base64.b64encode(sink.getvalue()).decode()}"
    return Picture(source, alt, width, height, pixelated=small)
