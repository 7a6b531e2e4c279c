"""Facts about the records of a split, gathered in one pass: labels, numbers, lengths, and sizes of images.

Memory does not grow with the records: of each feature a bounded number of values is kept, spread over the records."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from pipeline.orders.hashing import splitmix64
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.schema import Feature, Labels
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import intact, weighed
from pipeline.tools.record_checks import labels_of

__all__ = ["Facts", "Values", "gathered", "sample", "spread"]

MOST_VALUES = 500_000  # of a feature: 4 MB
RECORDS_PER_READ = 64


class Values:
    """A bounded sample of numbers, of which `add` gets those of one record at a time.

    of_records: how many records there will be; each contributes at most its share of MOST_VALUES, evenly spaced."""

    def __init__(self, of_records: int) -> None:
        self._share, self._kept = max(1, MOST_VALUES // max(1, of_records)), list[np.ndarray]()
        self._stride = -(-of_records // MOST_VALUES)
        self._records = 0

    def add(self, values: Sequence[float]) -> None:
        """Takes the values of a record."""
        self._records += 1
        if not values or (self._records - 1) % self._stride:
            return
        step = -(-len(values) // self._share)
        self._kept.append(np.asarray(values[::step], np.float32))

    @property
    def kept(self) -> np.ndarray:
        """float32 [n]: the values that were kept."""
        return np.concatenate(self._kept) if self._kept else np.zeros(0, np.float32)


@dataclass
class Facts:
    """What is known of these records. records: how many were read. labels: label -> count. numbers: feature -> its
    values. lengths: feature -> numbers of values, or of bytes. widths, heights: of images, by feature. formats: of
    images, such as "JPEG RGB" -> count."""

    records: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    numbers: dict[str, Values] = field(default_factory=dict)
    lengths: dict[str, Values] = field(default_factory=dict)
    widths: dict[str, Values] = field(default_factory=dict)
    heights: dict[str, Values] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)


def spread(total: int, wanted: int) -> np.ndarray:
    """Record numbers (all, if there are no more), spread evenly over the split."""
    return np.arange(min(wanted, total)) * total // max(1, min(wanted, total))


def sample(total: int, wanted: int) -> np.ndarray:
    """Like spread, but random within each step, in case labels are periodic. The same numbers in every run."""
    starts = spread(total, wanted)
    return starts + (splitmix64(starts.astype(np.uint64)) % np.diff(starts, append=total).astype(np.uint64)).astype(int)


def gathered(reader: IndexedRecords, ids: np.ndarray, progress: Any = None, *, only_labels: bool = False) -> Facts:
    """The facts of these records. progress: wraps the groups of records, as rich's track does, with their number.

    only_labels: leaves out everything else, which takes longer. Raises CorruptRecordError, StorageError."""
    manifest, facts = reader.manifest, Facts()
    groups = [ids[at : at + RECORDS_PER_READ] for at in range(0, len(ids), RECORDS_PER_READ)]
    found: Iterable[Any] = reader.read(weighed(reader, groups))
    for records in progress(found, len(groups)) if progress else found:
        for record in records:
            values = decode_example(intact(record).payload)
            facts.records += 1
            facts.labels.update(labels_of(manifest.labels, values))
            if not only_labels:
                _add(facts, manifest.schema.features, manifest.labels, values, len(ids))
    return facts


def _add(
    facts: Facts,
    features: Mapping[str, Feature],
    labels: Labels | None,
    values: Mapping[str, Sequence[Any]],
    of_records: int,
) -> None:
    for key, feature in features.items():
        items = values.get(key, ())
        if feature.content == "image":
            _add_images(facts, key, items, of_records)
        elif feature.dtype == "bytes":
            for item in items:
                _of(facts.lengths, key, of_records).add([len(item)])
        elif labels is None or key != labels.key:
            _of(facts.numbers, key, of_records).add(items)
        if None in feature.shape and feature.dtype != "bytes":
            _of(facts.lengths, key, of_records).add([len(items)])


def _add_images(facts: Facts, key: str, items: Sequence[bytes], of_records: int) -> None:
    for item in items:
        try:
            with Image.open(io.BytesIO(item)) as image:  # reads only the header
                facts.formats[f"{image.format} {image.mode}"] += 1
                _of(facts.widths, key, of_records).add([image.width])
                _of(facts.heights, key, of_records).add([image.height])
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            facts.formats["unreadable"] += 1
        _of(facts.lengths, key, of_records).add([len(item)])


def _of(values: dict[str, Values], key: str, of_records: int) -> Values:
    if key not in values:
        values[key] = Values(of_records)
    return values[key]
