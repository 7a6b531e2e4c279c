"""CIFAR-10 and CIFAR-100 in their binary versions: 32x32 RGB images as raw pixels, each after its label.

`layouts` finds the files. Pure: reads raw data through a Storage, returns values. Labels are the numbers in the
raw data, from 0. https://www.cs.toronto.edu/~kriz/cifar.html"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import Reference, References
from converters.images.pixels import pixel_features, pixel_rows, pixel_values
from converters.raw.class_names import names_digest
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.storage import Storage

__all__ = ["CIFAR10", "CIFAR100", "PIXEL_BYTES", "CifarConverter"]

_SIDE = 32
PIXEL_BYTES = 3 * _SIDE * _SIDE  # all red values, then green, then blue
_RECORDS_PER_BATCH = 1024  # 3 MB

CIFAR10 = Schema("cifar10", pixel_features(3))
CIFAR100 = Schema(
    "cifar100",
    {
        **pixel_features(3),
        "image/class/coarse_label": Feature("int64", doc="0..number of coarse classes - 1, as in the raw data"),
        "image/class/coarse_text": Feature("bytes", content="text", doc="name of the coarse class"),
    },
)


@dataclass(frozen=True)
class CifarConverter:
    """names: of the classes 0, 1, ...; coarse_names: the 20 of CIFAR-100, () for CIFAR-10."""

    names: tuple[str, ...]
    coarse_names: tuple[str, ...] = ()

    transforms = True
    worker_files = ()

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def schema(self) -> Schema:
        return CIFAR100 if self.coarse_names else CIFAR10

    @property
    def labels(self) -> Labels:
        return Labels("image/class/label", 0, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        names = {"names": names_digest(self.names), "coarse_names": names_digest(self.coarse_names)}
        return {"converter": "cifar/1", **names}

    @property
    def label_bytes(self) -> int:
        """Bytes before each image: the coarse label of CIFAR-100, then the label."""
        return 2 if self.coarse_names else 1

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a .bin file, or its byte range in a tar; its tag is the name of the file.

        Reads all bytes, 3 MB at a time: the labels are between the pixels."""
        size = self.label_bytes + PIXEL_BYTES
        firsts = range(0, source.bytes // size, _RECORDS_PER_BATCH)
        pieces = storage.read_ranges(
            (source.uri, source.offset + first * size, min(_RECORDS_PER_BATCH * size, source.bytes - first * size))
            for first in firsts
        )
        for first, piece in zip(firsts, pieces, strict=True):
            yield self._rows(source, first, np.frombuffer(piece, np.uint8).reshape(-1, size)[:, : self.label_bytes])

    def _rows(self, source: Source, first: int, labels: np.ndarray) -> References:
        columns = {"label": labels[:, -1].astype(np.int64)}
        if self.coarse_names:
            columns["coarse_label"] = labels[:, 0].astype(np.int64)
        stem = f"{source.split}/{source.tag.removesuffix('.bin')}_"
        numbers = np.arange(first, first + len(labels))
        ranges = (source.offset, self.label_bytes + PIXEL_BYTES)
        refs = pixel_rows(source.file, stem, numbers, ranges, columns=columns, classes=len(self.names))
        if not self.coarse_names:
            return refs
        unknown = (columns["coarse_label"] >= len(self.coarse_names)) & refs.good
        return refs.with_errors(unknown, f"a coarse label past the last, {len(self.coarse_names) - 1}")

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Assumes PNGs as large as their pixels."""
        return _BYTES_AROUND + refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        pixels = np.frombuffer(data, np.uint8)[self.label_bytes :].reshape(3, _SIDE, _SIDE).transpose(1, 2, 0)
        label = ref.number("label")
        values = pixel_values(pixels, ref.key, label, self.names[label])
        if self.coarse_names:
            coarse = ref.number("coarse_label")
            names = {"image/class/coarse_text": self.coarse_names[coarse].encode()}
            values = {**values, "image/class/coarse_label": coarse, **names}
        return Converted(values)


_BYTES_AROUND = len(
    encode_example(CIFAR10, pixel_values(np.zeros((_SIDE, _SIDE, 3), np.uint8), "data_batch_1_0000000.png", 0, "0" * 8))
)
