"""References to the byte ranges of images, and records with lossless PNGs.

The keys are tensorflow/tpu's, which usually contain a JPEG; that would change the pixels of such
small images."""

import io
from collections.abc import Mapping

import numpy as np
from PIL import Image

from beam_jobs.rows.references import File, References, column
from pipeline.shards.schema import Feature

_COLORSPACES = {1: b"GRAY", 3: b"RGB"}


def pixel_features(channels: int) -> Mapping[str, Feature]:
    """The features of a record. channels: 1 (grey) or 3 (RGB)."""
    return {
        "image/encoded": Feature(
            "bytes", content="image", doc="a PNG of exactly the raw pixels", channels=channels
        ),
        "image/height": Feature("int64", doc="pixels"),
        "image/width": Feature("int64", doc="pixels"),
        "image/channels": Feature("int64", doc=f"always {channels}"),
        "image/colorspace": Feature(
            "bytes", content="text", doc=f"always {_COLORSPACES[channels].decode()}"
        ),
        "image/format": Feature("bytes", content="text", doc="always PNG"),
        "image/filename": Feature(
            "bytes", content="text", doc="number of the image in its raw file, .png"
        ),
        "image/class/label": Feature("int64", doc="0..number of classes - 1, as in the raw data"),
        "image/class/text": Feature("bytes", content="text", doc="name of the class"),
    }


def pixel_values(
    pixels: np.ndarray, key: str, label: int, class_name: str
) -> dict[str, bytes | int]:
    """A value for each of pixel_features. pixels: uint8 [height, width, channels]."""
    height, width, channels = pixels.shape
    return {
        "image/encoded": _png(pixels),
        "image/height": height,
        "image/width": width,
        "image/channels": channels,
        "image/colorspace": _COLORSPACES[channels],
        "image/format": b"PNG",
        "image/filename": key.rsplit("/", 1)[-1].encode(),
        "image/class/label": label,
        "image/class/text": class_name.encode(),
    }


def pixel_rows(
    file: File,
    stem: str,
    numbers: np.ndarray,
    ranges: tuple[int, int],
    columns: Mapping[str, np.ndarray],
    classes: int,
) -> References:
    """References to consecutive records of equal size; a label past the last class is an error.

    stem: of the keys. numbers: of the images in the raw file. ranges: (offset of record 0, bytes
    per record). columns: "label" and what else a record needs, one value per number."""
    offset, size = ranges
    errors = [
        f"label {label}; allowed are 0..{classes - 1}" if label >= classes else ""
        for label in columns["label"]
    ]
    return References.in_file(
        file,
        key=column(f"{stem}{number:07d}.png" for number in numbers),
        offset=offset + numbers * size,
        size=np.full(len(numbers), size, np.int64),
        error=column(errors),
        columns=columns,
    )


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(
        buffer, "PNG", compress_level=6
    )
    return buffer.getvalue()
