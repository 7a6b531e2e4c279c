"""Exact sums over the columns of a table: computed from the records of a shard, stored in its
receipt, added up by the commit.

They do not depend on the order of the records, so every runner writes the same statistics."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.decoding.columns import Ragged
from pipeline.decoding.examples import ExampleParser
from pipeline.errors import SchemaError
from pipeline.shards.schema import ColumnStatistics
from pipeline.shards.typed_json import Count

_BITS = 149  # the least float32 is 2**-149
_LEAST = -125  # exponent of frexp: smaller float32 have fewer than 24 bits
_EXACT = 1 << 19  # values whose sums are exact in 63 bits
_BATCH_BYTES = 1 << 23  # of records that are parsed together


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
        """The sums of values: finite float32, where NaN is missing; integers; or numbers of
        classes, which are missing if below 0."""
        present = values[values >= 0 if classes else ~np.isnan(values)]
        counts = len(present), values.size - len(present)
        if classes:
            numbers, times = np.unique(present, return_counts=True)
            names = map(str, numbers.tolist())
            return ColumnSums(*counts, classes=dict(zip(names, times.tolist(), strict=True)))
        sums_of = _float_sums if present.dtype.kind == "f" else _integer_sums
        total = squares = 0
        for begin in range(0, len(present), _EXACT):
            more, more_squares = sums_of(present[begin : begin + _EXACT])
            total += more
            squares += more_squares
        ends = (present.min().item(), present.max().item()) if len(present) else ()
        return ColumnSums(*counts, total, squares, *ends)

    def add(self, other: "ColumnSums") -> None:
        """Adds the sums of other values."""
        for name in ("count", "missing", "total", "squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.min = min((each for each in (self.min, other.min) if each is not None), default=None)
        self.max = max((each for each in (self.max, other.max) if each is not None), default=None)
        self.classes = dict(Counter(self.classes) + Counter(other.classes))

    def statistics(self, names: Sequence[str] = ()) -> ColumnStatistics:
        """The statistics of the column. names: of its classes, if it has any."""
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


def _float_sums(values: np.ndarray) -> tuple[int, int]:
    """The sum of finite float32, and of their squares.

    Values of one exponent are integers of 24 bits times a power of two, whose sums are exact in
    float64. So are the sums of their squares in two halves."""
    exponents = np.maximum(np.frexp(values)[1], _LEAST)
    integers = np.ldexp(values.astype(np.float64), 24 - exponents).astype(np.int64)
    squares = integers * integers

    def total(weights: np.ndarray, bits: int) -> int:
        sums = np.bincount(exponents - _LEAST, weights).tolist()
        return sum(int(each) << bits * place for place, each in enumerate(sums) if each)

    return total(integers, 1), total(squares & 0xFFFFFF, 2) + (total(squares >> 24, 2) << 24)


def _integer_sums(values: np.ndarray) -> tuple[int, int]:
    """The sum of integers, and of their squares, from parts of 22 bits."""
    wide = values.astype(np.int64)
    parts = ((wide & 0x3FFFFF, 0), (wide >> 22 & 0x3FFFFF, 22), (wide >> 44, 44))
    total = sum(int(part.sum()) << bits for part, bits in parts)
    squares = sum(int(a @ b) << m + n for (a, m), (b, n) in itertools.product(parts, parts))
    return total << _BITS, squares << 2 * _BITS


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

    def add(self, payloads: Iterable[bytes]) -> None:
        """Adds records. Raises SchemaError for an infinite number in them."""
        for payload in payloads if self._parse else ():
            self._records.append(payload)
            self._bytes += len(payload)
            if self._bytes >= _BATCH_BYTES:
                self.columns()

    def columns(self) -> dict[str, ColumnSums]:
        """The sums of each column, over all records. Raises SchemaError like add."""
        if self._parse and self._records:
            for key, column in self._parse(self._records).items():
                values = column.values if isinstance(column, Ragged) else np.asarray(column).ravel()
                if np.isinf(values).any():
                    raise SchemaError(
                        f"{key!r} has an infinite number, so it has no mean. Its converter must "
                        "reject such records."
                    )
                self._columns[key].add(ColumnSums.of(values, classes=key in self._classes))
            self._records = []
            self._bytes = 0
        return dict(self._columns)
