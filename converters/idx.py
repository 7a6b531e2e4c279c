"""The idx format of MNIST and its family (Fashion-MNIST, KMNIST, EMNIST): grey images one after another, and labels.

idx_layouts finds the files. Pure: reads raw data through a Storage, returns values. Labels are the numbers in the raw
data, from 0, because every MNIST tutorial expects the digit itself. http://yann.lecun.com/exdb/mnist/"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import File, Reference, References
from converters.class_names import names_digest
from converters.pixels import pixel_features, pixel_rows, pixel_values
from pipeline.shards.errors import RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Labels, Schema
from pipeline.shards.storage import Storage

__all__ = ["HEADER_BYTES", "LABELS_HEADER_BYTES", "SCHEMA", "IdxConverter", "ImagesHeader", "labels_count"]

HEADER_BYTES, LABELS_HEADER_BYTES = 16, 8
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801  # unsigned bytes, in three dimensions or in one
_MAX_SIDE = 4096  # pixels; of the family none has more than 128
_ROWS_PER_BATCH = 4096

SCHEMA = Schema("idx", pixel_features(1))


@dataclass(frozen=True)
class ImagesHeader:
    """How many images a file holds, and how large each is."""

    count: int
    height: int
    width: int

    @property
    def image_bytes(self) -> int:
        """Of each image, a byte a pixel."""
        return self.height * self.width

    @staticmethod
    def parse(data: bytes, name: str) -> "ImagesHeader":
        """From the first bytes of a file. Raises RawDataError, with the file's name, where they make no sense."""
        count, height, width = _header(data, ">4I", _IMAGES_MAGIC, f"{name} is no idx file of images")
        if not count or not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
            raise RawDataError(
                f"{name} says that it holds {count} images of {height} x {width} pixels; allowed are 1 image and more, "
                f"of 1 to {_MAX_SIDE} pixels a side. It is damaged: copy it again."
            )
        return ImagesHeader(count, height, width)

    def check_size(self, size: int, name: str) -> None:
        """Raises RawDataError unless a file of so many bytes holds exactly these images."""
        wanted = HEADER_BYTES + self.count * self.image_bytes
        if size != wanted:
            raise RawDataError(
                f"{name} has {size} bytes; {self.count} images of {self.height} x {self.width} pixels, as it says "
                f"itself, make {wanted}. It was not fully copied, or is damaged: copy it again."
            )


def labels_count(data: bytes, name: str) -> int:
    """How many labels a file says it holds. Raises RawDataError when it is no file of labels."""
    return _header(data, ">2I", _LABELS_MAGIC, f"{name} is no idx file of labels")[0]


def _header(data: bytes, form: str, magic: int, wrong: str) -> tuple[int, ...]:
    size = struct.calcsize(form)
    found, *dimensions = struct.unpack(form, data[:size].ljust(size, b"\0"))
    if found == magic and len(data) < size:
        raise RawDataError(f"{wrong}: it ends after {len(data)} bytes. Copy it again.")
    if found != magic:
        begin = data[:4].hex(" ") or "nothing"
        raise RawDataError(f"{wrong}: it begins with {begin}, which must be {magic.to_bytes(4, 'big').hex(' ')}.")
    return tuple(dimensions)


@dataclass(frozen=True)
class IdxConverter:
    """names: of the classes 0, 1, ... . raw_labels: of each split, a byte an image.

    transpose: swaps rows and columns of every image: EMNIST's are stored so."""

    names: tuple[str, ...]
    raw_labels: Mapping[str, bytes]
    transpose: bool = False

    name = "idx"
    schema = SCHEMA
    transforms = True
    worker_files = ()

    @property
    def labels(self) -> Labels:
        """The label feature, and the name of each number."""
        return Labels("image/class/label", 0, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. The raw labels are not among them: each row has its own."""
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
            file = File(source.uri, source.stat)
            yield pixel_rows(file, f"{source.split}/", numbers, ranges, columns, len(self.names))

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter: of a PNG that is as large as its pixels."""
        return _BYTES_AROUND + refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter."""
        height, width, label = (ref.columns[name] for name in ("height", "width", "label"))
        assert isinstance(label, int)
        pixels = np.frombuffer(data, np.uint8).reshape(height, width, 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if self.transpose:
            pixels = pixels.transpose(1, 0, 2)
        return Converted(pixel_values(pixels, ref.key, label, self.names[label]))


_BYTES_AROUND = len(encode_example(SCHEMA, {**pixel_values(np.zeros((28, 28, 1), np.uint8), "0000000.png", 0, "0")}))
