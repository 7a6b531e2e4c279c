"""Statistics of the columns of a converted table: _summary/columns.json, by split.

A conversion writes them, `describe` shows them, and recipes normalize by them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pipeline.errors import SchemaError
from pipeline.shards.typed_json import Count, JsonFile, read_sealed, sealed
from pipeline.storage.storage import Storage, join

COLUMNS_FILE = "_summary/columns.json"
COLUMNS = ("column", "count", "missing", "mean", "deviation", "min", "max", "categories")


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
