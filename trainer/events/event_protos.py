"""TensorBoard's summary protos for scalars, images, histograms and texts, made without tensorflow.

Images, histograms and texts are tensors tagged with the plugin that shows them, as tf.summary writes them."""

# The modules of the protos define their classes at import.
# pyright: reportAttributeAccessIssue=false

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.util.tensor_util import make_tensor_proto

from pipeline.errors import OptionError

__all__ = ["MOST_IMAGES", "histogram_summary", "image_summary", "scalar_summary", "text_summary"]

MOST_IMAGES = 16  # per point; an event file is no place for a complete batch
BUCKETS = 30  # TensorBoard's own default
CHANNELS = (1, 3, 4)


def scalar_summary(values: Mapping[str, float]) -> Summary:
    """One scalar per tag."""
    return Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])


def image_summary(tag: str, images: Any) -> Summary:
    """One image, or the first 16 of several, as PNG; see EventWriter.image."""
    images = _pixels(tag, images)[:MOST_IMAGES]
    _, height, width, _ = images.shape
    sizes = [str(width).encode(), str(height).encode()]
    return _tensor(tag, "images", [*sizes, *map(_png, images)])


def text_summary(tag: str, text: str) -> Summary:
    """A Markdown text."""
    return _tensor(tag, "text", [text.encode()])


def histogram_summary(tag: str, values: Any) -> Summary:
    """The finite values in 30 buckets of equal width: rows of left edge, right edge, count."""
    numbers = np.asarray(values, np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    table = np.zeros((BUCKETS, 3))
    if numbers.size and numbers.min() == numbers.max():
        # NumPy would widen the range to 1. TensorBoard writes a single value this way.
        table[:, :2], table[-1, 2] = numbers[0], numbers.size
    elif numbers.size:
        counts, edges = np.histogram(numbers, BUCKETS)
        table = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return _tensor(tag, "histograms", table)


def _pixels(tag: str, images: Any) -> np.ndarray:
    """uint8 [n, h, w, c]."""
    array = np.asarray(images)
    array = array[None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[3] not in CHANNELS or 0 in array.shape:
        raise OptionError(
            f"the image {tag!r} has the shape {list(np.shape(images))}. Give [h, w, c] or [n, h, w, c] with 1 (grey), "
            "3 (RGB) or 4 (RGBA) channels."
        )
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "fV":  # V: bfloat16
        raise OptionError(f"the image {tag!r} is {array.dtype}. Give uint8 in 0..255 or floats in 0..1.")
    array = array.astype(np.float32)
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):
        raise OptionError(
            f"the image {tag!r} has values in {low:.4g}..{high:.4g}. Float images must be in 0..1: undo the "
            "normalization, for example (x - x.min()) / (x.max() - x.min())."
        )
    return np.rint(array * 255).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _tensor(tag: str, plugin: str, values: list[bytes] | np.ndarray) -> Summary:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(values))])
