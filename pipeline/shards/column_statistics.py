"""Statistics of the columns of a converted table: _summary/columns.json, by split.

They are made of exact sums, which do not depend on the order of the records, so every runner writes the same bytes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction

from pipeline.errors import SchemaError
from pipeline.shards.typed_json import Count, JsonFile, read_sealed, sealed
from pipeline.storage.storage import Storage, join

COLUMNS_FILE = "_summary/columns.json"
COLUMNS = ("column", "count", "missing", "mean", "deviation", "min", "max", "categories")
_SCALE = 2**149  # the least float32 is 1 / _SCALE


@dataclass(frozen=True)
class ColumnStatistics:
    """Of the values of one column that are not missing. deviation: of the population. categories: class -> count."""

    count: Count
    missing: Count
    mean: float | None = None
    deviation: float | None = None
    min: float | None = None
    max: float | None = None
    categories: Mapping[str, Count] = field(default_factory=dict)


Statistics = Mapping[str, ColumnStatistics]


@dataclass
class ColumnSums:
    """Exact sums over values: total * _SCALE and squares * _SCALE^2 are integers. classes: count of each number."""

    count: Count = 0
    missing: Count = 0
    total: int = 0
    squares: int = 0
    min: float | None = None
    max: float | None = None
    classes: dict[str, Count] = field(default_factory=dict)

    def add_classes(self, numbers: Sequence[int]) -> None:
        """Negative numbers are missing."""
        for number in map(str, numbers):
            self.classes[number] = self.classes.get(number, 0) + 1
            self.count, self.missing = self.count + (number >= "0"), self.missing + (number < "0")

    def add_numbers(self, numbers: Sequence[float]) -> None:
        """NaNs are missing."""
        for number in numbers:
            if math.isnan(number):
                self.missing += 1
                continue
            scaled = number * _SCALE if isinstance(number, int) else int(number * float(_SCALE))
            self.count, self.total, self.squares = self.count + 1, self.total + scaled, self.squares + scaled * scaled
            self.min = number if self.min is None else min(self.min, number)
            self.max = number if self.max is None else max(self.max, number)

    def add(self, other: "ColumnSums") -> None:
        """Adds the sums of other values."""
        for name in ("count", "missing", "total", "squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.min = min((each for each in (self.min, other.min) if each is not None), default=None)
        self.max = max((each for each in (self.max, other.max) if each is not None), default=None)
        for number, count in other.classes.items():
            self.classes[number] = self.classes.get(number, 0) + count

    def statistics(self, names: Sequence[str] = ()) -> ColumnStatistics:
        """names: of the classes, if it has classes."""
        if names:
            classes = {name: self.classes.get(str(number), 0) for number, name in enumerate(names)}
            return ColumnStatistics(self.count, self.missing, categories=classes)
        if not self.count:
            return ColumnStatistics(0, self.missing)
        mean = Fraction(self.total, self.count * _SCALE)
        variance = Fraction(self.squares, self.count * _SCALE**2) - mean**2
        return ColumnStatistics(self.count, self.missing, float(mean), math.sqrt(variance), self.min, self.max)


@dataclass(frozen=True)
class _File:
    splits: Mapping[str, Statistics]


def read_statistics(storage: Storage, directory: str) -> Mapping[str, Statistics]:
    """By split and column; empty where no table was converted. Raises SchemaError for a damaged file."""
    path = join(directory, COLUMNS_FILE)
    if not storage.exists(path):
        return {}
    return read_sealed(JsonFile(path, SchemaError, "Convert the table again."), storage.read(path), _File).splits


def update_statistics(storage: Storage, directory: str, split: str, statistics: Statistics) -> None:
    """Replaces those of a split."""

    def changed(_: bytes | None) -> bytes:
        try:
            there = read_statistics(storage, directory)
        except SchemaError:
            there = {}
        file = _File(dict(sorted({**there, split: statistics}.items())))
        return json.dumps(sealed(asdict(file)), indent=1).encode()

    storage.update(join(directory, COLUMNS_FILE), changed)
