"""The idx format of MNIST and its family (Fashion-MNIST, KMNIST, EMNIST): grey images one after another, and labels.

`layouts` finds the files. Pure: reads raw data through a Storage, returns values. Labels are the numbers in the
raw data, from 0: every MNIST tutorial expects the digit itself. http://yann.lecun.com/exdb/mnist/"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import Reference, References
from converters.images.pixels import pixel_features, pixel_rows, pixel_values
from converters.raw.class_names import names_digest
from pipeline.errors import RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.storage import Storage

__all__ = ["HEADER_BYTES", "LABELS_HEADER_BYTES", "SCHEMA", "IdxConverter", "ImagesHeader", "labels_count"]

HEADER_BYTES, LABELS_HEADER_BYTES = 16, 8
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801  # unsigned bytes in 3 dimensions, or in 1
_MAX_SIDE = 4096  # pixels; no dataset of the family has more than 128
_ROWS_PER_BATCH = 4096

SCHEMA = Schema("idx", pixel_features(1))


@dataclass(frozen=True)
class ImagesHeader:
    """The number of images in a file, and their size in pixels."""

    count: int
    height: int
    width: int

    @property
    def image_bytes(self) -> int:
        """Size of an image: 1 byte per pixel."""
        return self.height * self.width

    @staticmethod
    def parse(data: bytes, name: str) -> "ImagesHeader":
        """The header from the first bytes of a file. Raises RawDataError. name: the file's, for errors."""
        count, height, width = _header(data, ">4I", _IMAGES_MAGIC, f"{name} is not an idx file of images")
        if not count or not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
            raise RawDataError(
                f"{name} has a header for {count} images of {height} x {width} pixels; it must have at least 1 image, "
                f"with sides of 1 to {_MAX_SIDE} pixels. It is damaged: copy it again."
            )
        return ImagesHeader(count, height, width)

    def check_size(self, size: int, name: str) -> None:
        """Raises RawDataError unless a file of this size in bytes has exactly these images."""
        wanted = HEADER_BYTES + self.count * self.image_bytes
        if size != wanted:
            raise RawDataError(
                f"{name} has {size} bytes, but its header requires {wanted}: {self.count} images of {self.height} x "
                f"{self.width} pixels. It was not fully copied, or is damaged: copy it again."
            )


def labels_count(data: bytes, name: str) -> int:
    """The number of labels in the header of a file. Raises RawDataError if it is not a file of labels."""
    return _header(data, ">2I", _LABELS_MAGIC, f"{name} is not an idx file of labels")[0]


def _header(data: bytes, form: str, magic: int, wrong: str) -> tuple[int, ...]:
    size = struct.calcsize(form)
    found, *dimensions = struct.unpack(form, data[:size].ljust(size, b"\0"))
    if found == magic and len(data) < size:
        raise RawDataError(f"{wrong}: it ends after {len(data)} bytes. Copy it again.")
    if found != magic:
        begin = data[:4].hex(" ") or "nothing"
        raise RawDataError(f"{wrong}: it begins with {begin} instead of {magic.to_bytes(4, 'big').hex(' ')}.")
    return tuple(dimensions)


@dataclass(frozen=True)
class IdxConverter:
    """names: of the classes 0, 1, ... . raw_labels: by split, 1 byte per image.

    transpose: swaps rows and columns of every image, for EMNIST."""

    names: tuple[str, ...]
    raw_labels: Mapping[str, bytes]
    transpose: bool = False

    name = "idx"
    schema = SCHEMA
    transforms = True
    worker_files = ()

    @property
    def labels(self) -> Labels:
        return Labels("image/class/label", 0, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without the raw labels: each row has its own."""
        return {"converter": "idx/1", "names": names_digest(self.names), "transpose": self.transpose}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is an uncompressed file of images."""
        begin = next(iter(storage.read_ranges([(source.uri, 0, HEADER_BYTES)])))
        header = ImagesHeader.parse(begin, source.uri)
        header.check_size(source.bytes, source.uri)
        labels = np.frombuffer(self.raw_labels[source.split], np.uint8).astype(np.int64)
        for first in range(0, header.count, _ROWS_PER_BATCH):
            numbers = np.arange(first, min(first + _ROWS_PER_BATCH, header.count))
            columns = {
                "label": labels[numbers],
                "height": np.full(len(numbers), header.height),
                "width": np.full(len(numbers), header.width),
            }
            ranges = (HEADER_BYTES, header.image_bytes)
            stem, classes = f"{source.split}/", len(self.names)
            yield pixel_rows(source.file, stem, numbers, ranges, columns=columns, classes=classes)

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Assumes PNGs as large as their pixels."""
        return _BYTES_AROUND + refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        height, width, label = (ref.number(name) for name in ("height", "width", "label"))
        pixels = np.frombuffer(data, np.uint8).reshape(height, width, 1)
        if self.transpose:
            pixels = pixels.transpose(1, 0, 2)
        return Converted(pixel_values(pixels, ref.key, label, self.names[label]))


_BYTES_AROUND = len(encode_example(SCHEMA, {**pixel_values(np.zeros((28, 28, 1), np.uint8), "0000000.png", 0, "0")}))
