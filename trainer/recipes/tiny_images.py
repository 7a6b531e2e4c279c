"""Labelled images generated in memory, for --tiny: enough to try a recipe without any data."""

import io
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from pipeline.shards.schema import Feature, Labels, Schema

if TYPE_CHECKING:
    from pipeline.sources.in_memory import ExampleRecords

__all__ = ["Encoding", "tiny_images"]

Encoding = Literal["jpeg", "png"]
"""The format of image files."""
RECORDS = 130  # no multiple of a usual batch size, so the last batch of an evaluation has rows of padding
CELLS = 4  # rows and columns of a class's pattern
NOISE = 24  # gray levels
LABEL = "image/class/label"


def tiny_images(
    split: str,
    shape: tuple[int, int, int],
    num_classes: int,
    *,
    label_base: int = 0,
    encoding: Encoding = "png",
) -> "ExampleRecords":
    """130 images with labels in turn: a coarse pattern of the class, which all splits share, and noise of the split.

    The features are those of infeed's converters: image/encoded, an image of `shape` (height, width, 1 or 3 channels);
    image/filename; image/class/label, from label_base. Pixels depend only on the arguments; the bytes of a JPEG also on
    the version of Pillow."""
    from pipeline.sources.in_memory import ExampleRecords  # loads NumPy

    schema = Schema(
        "tiny",
        {
            "image/encoded": Feature("bytes", content="image", channels=shape[2]),
            "image/filename": Feature("bytes", content="text"),
            LABEL: Feature("int64"),
        },
    )
    names = tuple(f"class {number}" for number in range(num_classes))
    examples = _examples(split, shape, num_classes, label_base, encoding)
    return ExampleRecords(f"{split} (--tiny)", schema, examples, Labels(LABEL, label_base, names))


def _examples(
    split: str, shape: tuple[int, int, int], num_classes: int, label_base: int, encoding: Encoding
) -> Iterator[dict[str, Any]]:
    import numpy as np

    height, width, channels = shape
    cells = np.random.default_rng(0).integers(NOISE, 256 - NOISE, (num_classes, CELLS, CELLS, channels))
    rows, columns = np.arange(height) * CELLS // height, np.arange(width) * CELLS // width
    noise = np.random.default_rng(int.from_bytes(blake2b(split.encode(), digest_size=8).digest()))
    for number in range(RECORDS):
        pattern = cells[number % num_classes][rows][:, columns]
        pixels = (pattern + noise.integers(-NOISE, NOISE, shape)).astype(np.uint8)
        yield {
            "image/encoded": _encoded(pixels, encoding),
            "image/filename": f"{number:03d}.{encoding}".encode(),
            LABEL: number % num_classes + label_base,
        }


def _encoded(pixels: Any, encoding: Encoding) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, encoding)
    return buffer.getvalue()
