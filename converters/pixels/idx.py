"""MNIST and its family (Fashion-MNIST, KMNIST, EMNIST) as idx files: grey images one after another,
and their labels.

    train-images-idx3-ubyte, train-labels-idx1-ubyte        the training images
    t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte          the test images; EMNIST has test-
    emnist-letters-train-images-idx3-ubyte ...              with the name of a dataset as prefix

each also as .gz, and with a dot instead of the hyphen before idx. Prefixes distinguish datasets in
one directory. Labels are the numbers in the raw data, from 0: every MNIST tutorial expects the
digit itself.
http://yann.lecun.com/exdb/mnist/"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.rows.references import Reference, References
from beam_jobs.scratch import Scratch, readable
from converters.pixels.records import pixel_features, pixel_rows, pixel_values
from converters.raw.class_names import names_digest
from converters.raw.files import first_few, open_raw_data
from converters.raw.splits import chosen
from pipeline.checks import did_you_mean
from pipeline.errors import OptionError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join, uncompressed

SPLITS = ("train", "test")
_NAME = re.compile(
    r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<what>images|labels)[-.]idx[13]-ubyte(\.gz)?"
)
_HEADER_BYTES, _LABELS_HEADER_BYTES = 16, 8
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801  # unsigned bytes in 3 dimensions, or in 1
_MAX_SIDE = 4096  # pixels; no dataset of the family has more than 128
_ROWS_PER_BATCH = 4096

_SCHEMA = Schema("idx", pixel_features(1))


def find_idx(
    raw_data_dir: str, splits: Sequence[str], prefix: str | None, scratch: Scratch | None
) -> tuple[Sequence[Source], Mapping[str, bytes]]:
    """The sources of the chosen splits, or of all splits that exist; and the labels of all splits,
    including those not chosen, 1 byte per image. prefix: of the dataset, if there are several.

    scratch: for .gz files, None forbids writing. Raises RawDataError if files are missing or
    damaged, OptionError."""
    storage = open_raw_data(raw_data_dir)
    files = _files(storage, raw_data_dir, prefix)
    splits_found = [split for split in SPLITS if (split, "images") in files]
    chosen_splits = chosen(raw_data_dir, splits, splits_found)
    sources = []
    labels = {}
    for split in splits_found:
        path = join(raw_data_dir, files[split, "images"])
        header = ImagesHeader.parse(_begin(path, _HEADER_BYTES), path)
        if not path.endswith(".gz"):
            header.check_size(storage.stat(path).bytes, path)
        name = files.get((split, "labels"))
        labels[split] = _labels(raw_data_dir, name, header.count, path)
        if split in chosen_splits:
            source = readable(path, scratch, split)
            header.check_size(source.bytes, path)
            sources.append(replace(source, kind="file"))
    return sources, labels


def _files(
    storage: Storage, raw_data_dir: str, prefix: str | None
) -> Mapping[tuple[str, str], str]:
    """The names of one dataset's files by (split, "images" or "labels")."""
    names, _ = storage.entries(raw_data_dir)
    sets: dict[str, dict[tuple[str, str], str]] = {}
    for name in names:  # sorted: an uncompressed file is before its .gz
        if match := _NAME.fullmatch(name):
            split = "train" if match["split"] == "train" else "test"
            sets.setdefault(match["prefix"].rstrip("-"), {}).setdefault(
                (split, match["what"]), name
            )
    sets = {
        name: files
        for name, files in sets.items()
        if ("train", "images") in files or ("test", "images") in files
    }
    if not sets:
        raise RawDataError(
            f"{raw_data_dir} has no file of images like train-images-idx3-ubyte or "
            f"t10k-images-idx3-ubyte.gz. It has: {first_few(names)}."
        )
    if prefix is not None:
        if prefix.rstrip("-") not in sets:
            raise OptionError(
                f"--prefix={prefix}: there is no such dataset.{did_you_mean(prefix, sets)}"
            )
        return sets[prefix.rstrip("-")]
    if len(sets) > 1:
        datasets = ", ".join(name or "'' (no prefix)" for name in sets)
        raise OptionError(
            f"{raw_data_dir} has several datasets: {datasets}. Choose one with --prefix."
        )
    return next(iter(sets.values()))


def _labels(raw_data_dir: str, name: str | None, images: int, images_path: str) -> bytes:
    if name is None:
        labels_name = (
            images_path.rsplit("/", 1)[-1].replace("images", "labels").replace("idx3", "idx1")
        )
        raise RawDataError(
            f"{raw_data_dir} has no labels for {images_path}. It needs {labels_name}."
        )
    path = join(raw_data_dir, name)
    data = _begin(path, _LABELS_HEADER_BYTES + images + 1)
    (count,) = _header(data, ">2I", _LABELS_MAGIC, f"{path} is not an idx file of labels")
    num_labels = len(data) - _LABELS_HEADER_BYTES
    if count != images:
        raise RawDataError(
            f"{path} has {count} labels, but {images_path} has {images} images. They do not match, "
            "or one is damaged."
        )
    if num_labels != count:
        more = "more" if num_labels > count else num_labels
        raise RawDataError(
            f"{path} has a header for {count} labels and has {more}. It is damaged: copy it again."
        )
    return data[_LABELS_HEADER_BYTES:]


def _begin(path: str, size: int) -> bytes:
    """The first bytes of a file, up to `size`, uncompressed."""
    with uncompressed(open_storage(path), path) as file:
        return file.read(size)


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
        """The header from the first bytes of a file. Raises RawDataError. name: the file's, for
        errors."""
        count, height, width = _header(
            data, ">4I", _IMAGES_MAGIC, f"{name} is not an idx file of images"
        )
        if not count or not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
            raise RawDataError(
                f"{name} has a header for {count} images of {height} x {width} pixels; it must "
                f"have at least 1 image, with sides of 1 to {_MAX_SIDE} pixels. It is damaged: "
                "copy it again."
            )
        return ImagesHeader(count, height, width)

    def check_size(self, size: int, name: str) -> None:
        """Raises RawDataError unless a file of this size in bytes has exactly these images."""
        expected = _HEADER_BYTES + self.count * self.image_bytes
        if size != expected:
            raise RawDataError(
                f"{name} has {size} bytes, but its header requires {expected}: {self.count} images "
                f"of {self.height} x {self.width} pixels. It was not fully copied, or is damaged: "
                "copy it again."
            )


def _header(data: bytes, form: str, magic: int, wrong: str) -> tuple[int, ...]:
    size = struct.calcsize(form)
    begin, *dimensions = struct.unpack(form, data[:size].ljust(size, b"\0"))
    if begin != magic:
        raise RawDataError(
            f"{wrong}: it begins with {data[:4].hex(' ') or 'nothing'} instead of "
            f"{magic.to_bytes(4, 'big').hex(' ')}."
        )
    if len(data) < size:
        raise RawDataError(f"{wrong}: it ends after {len(data)} bytes. Copy it again.")
    return tuple(dimensions)


@dataclass(frozen=True)
class IdxConverter:
    """The converter of idx files. names: of the classes 0, 1, ... . raw_labels: by split, 1 byte
    per image.

    transpose: swaps rows and columns of every image, for EMNIST."""

    names: tuple[str, ...]
    raw_labels: Mapping[str, bytes]
    transpose: bool = False

    name = "idx"
    schema = _SCHEMA
    transforms = True
    worker_files = ()

    def core_seconds_per_gb(self, _name: str) -> float:
        """See Converter."""
        return 140  # measured on MNIST

    @property
    def labels(self) -> Labels:
        return Labels("image/class/label", 0, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without the raw labels: each row has its own."""
        return {
            "converter": "idx/1",
            "names": names_digest(self.names),
            "transpose": self.transpose,
        }

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is an uncompressed file of images."""
        begin = next(iter(storage.read_ranges([(source.uri, 0, _HEADER_BYTES)])))
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
            ranges = (_HEADER_BYTES, header.image_bytes)
            yield pixel_rows(
                source.file, f"{source.split}/", numbers, ranges, columns, len(self.names)
            )

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Assumes PNGs as large as their pixels."""
        return _BYTES_AROUND + refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        height, width, label = (ref.number(name) for name in ("height", "width", "label"))
        pixels = np.frombuffer(data, np.uint8).reshape(height, width, 1)
        if self.transpose:
            pixels = pixels.transpose(1, 0, 2)
        return Converted(pixel_values(pixels, ref.key, label, self.names[label]))


_BYTES_AROUND = len(
    encode_example(_SCHEMA, pixel_values(np.zeros((28, 28, 1), np.uint8), "0000000.png", 0, "0"))
)
