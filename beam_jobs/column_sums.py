"""Exact sums over the columns of a table: made of the records of a shard, kept in its receipt,
added up by the commit.

They do not depend on the order of the records, so every runner writes the same statistics."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.decoding.columns import Ragged
from pipeline.decoding.examples import ExampleParser
from pipeline.shards.schema import ColumnStatistics
from pipeline.shards.typed_json import Count

_BITS = 149  # the least float32 is 2**-149
_BATCH_BYTES = 1 << 20  # of records that are parsed together


@dataclass
class ColumnSums:
    """Sums over the values of a column. total * 2**_BITS and squares * 4**_BITS are integers.
    classes: the count of each number, instead of the sums."""

    count: Count = 0
    missing: Count = 0
    total: int = 0
    squares: int = 0
    min: float | None = None
    max: float | None = None
    classes: Mapping[str, Count] = field(default_factory=dict)

    @staticmethod
    def of(values: np.ndarray, *, classes: bool) -> "ColumnSums":
        """The sums of values. These are float32, in which NaN is missing; integers; or numbers of
        classes, which are missing below 0."""
        present = values[values >= 0 if classes else ~np.isnan(values)]
        counts = len(present), values.size - len(present)
        if classes:
            times = Counter(map(str, np.sort(present).tolist()))
            return ColumnSums(*counts, classes=dict(times))
        if present.dtype.kind == "f":
            scaled = [int(value) for value in np.ldexp(present.astype(np.float64), _BITS).tolist()]
        else:
            scaled = [value << _BITS for value in present.tolist()]
        ends = (present.min().item(), present.max().item()) if scaled else ()
        return ColumnSums(*counts, sum(scaled), sum(value * value for value in scaled), *ends)

    def add(self, other: "ColumnSums") -> None:
        """Adds the sums of other values."""
        for name in ("count", "missing", "total", "squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.min = min((each for each in (self.min, other.min) if each is not None), default=None)
        self.max = max((each for each in (self.max, other.max) if each is not None), default=None)
        self.classes = dict(Counter(self.classes) + Counter(other.classes))

    def statistics(self, names: Sequence[str] = ()) -> ColumnStatistics:
        """The statistics that these sums give. names: of the classes, if it has classes."""
        if names:
            classes = {name: self.classes.get(str(number), 0) for number, name in enumerate(names)}
            return ColumnStatistics(self.count, self.missing, categories=classes)
        if not self.count:
            return ColumnStatistics(0, self.missing)
        mean = Fraction(self.total, self.count << _BITS)
        variance = Fraction(self.squares, self.count << 2 * _BITS) - mean**2
        return ColumnStatistics(
            self.count, self.missing, float(mean), math.sqrt(variance), self.min, self.max
        )


class RecordSums:
    """Sums over the numbers in records, of a converter that has class_names."""

    def __init__(self, converter: Any) -> None:
        classes: Mapping[str, Sequence[str]] | None = getattr(converter, "class_names", None)
        features = {} if classes is None else converter.schema.features
        numbers = {key: feature for key, feature in features.items() if feature.dtype != "bytes"}
        self._parse = ExampleParser(numbers) if numbers else None
        self._classes = classes or {}
        self._records = list[bytes]()
        self._bytes = 0
        self._columns = defaultdict[str, ColumnSums](ColumnSums)

    def add(self, payload: Sequence[bytes]) -> None:
        """Adds a record. payload: its pieces."""
        if self._parse:
            self._records.append(b"".join(payload))
            self._bytes += len(self._records[-1])
            if self._bytes >= _BATCH_BYTES:
                self.columns()

    def add_all(self, payloads: Sequence[bytes]) -> None:
        """Adds many records."""
        for payload in payloads:
            self.add([payload])

    def columns(self) -> dict[str, ColumnSums]:
        """The sums of each column, over all records."""
        if self._parse and self._records:
            for key, column in self._parse(self._records).items():
                values = column.values if isinstance(column, Ragged) else np.asarray(column).ravel()
                self._columns[key].add(ColumnSums.of(values, classes=key in self._classes))
            self._records = []
            self._bytes = 0
        return dict(self._columns)
