"""The features of a record: names, kinds, shapes. Encoders check values against it; parsers get
static shapes.

The statistics of the columns of a converted table are in _summary/columns.json, by split: a
conversion writes them, `describe` shows them, and recipes normalize by them."""

import codecs
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import msgspec

from pipeline.errors import SchemaError
from pipeline.shards.typed_json import REQUIRED, Count, Json, JsonFile, read_sealed, sealed
from pipeline.storage.storage import Storage, join

__all__ = ["PASSED_ON", "SHARD_FILES", "Content", "Dtype", "Feature", "Labels", "Schema"]

Dtype = Literal["bytes", "int64", "float32"]
"""The kinds of values in a record."""
Content = Literal["raw", "text", "image"]
"""The meaning of a bytes feature: opaque, UTF-8, an encoded image file."""
ShardFiles = Annotated[str, msgspec.Meta(pattern=r"\A[^/\x00]*\{SHARD_X_OF_Y\}[^/\x00]*\Z")]
SidecarName = Annotated[
    str,
    msgspec.Meta(pattern=r"\A((dataset_info|features|metadata)\.json|[^/\x00]+\.labels\.txt)\Z"),
]
SHARD_FILES = "{SPLIT}-{SHARD_X_OF_Y}"
"""The usual names of shards, in TFDS notation."""
PASSED_ON = "tfrecord"
"""The schema name of records that infeed did not encode; they do not contain their keys."""
_TFDS_VERSION = "1.0.0"  # TFDS requires one; the manifest's fingerprint identifies the data
COLUMNS_FILE = "_summary/columns.json"
COLUMNS = ("column", "count", "missing", "mean", "deviation", "min", "max", "categories")


MISSING_VALUES = (
    *("NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "null", "None"),
    *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    *("?", "-", "--", ".", "\\N"),
)
"""Texts that mean no value in a column of numbers: those of pandas, databases and statistics."""


def has_single_bytes(encoding: str) -> bool:
    """Whether it is UTF-8, or has ASCII and one byte for each character: rows are ranges of
    bytes."""
    try:
        usual = codecs.lookup(encoding).name
        characters = bytes(range(256)).decode(usual, "replace")
    except LookupError:
        return False
    has_ascii = characters.startswith(bytes(range(128)).decode())
    return usual == "utf-8" or (has_ascii and len(characters) == 256)


@dataclass(frozen=True)
class TableFormat:
    """How the text of tables is read.

    delimiter: of csv; None for the default of the file's name.
    decimal: the mark in numbers, a dot or a comma.
    encoding: UTF-8, or one with a byte per character.
    missing_values: cells without a value in columns of numbers, besides empty ones.
    quoted: whether cells of csv may be in quotes; if not, a quote is a character like any other."""

    delimiter: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    missing_values: tuple[str, ...] = MISSING_VALUES
    quoted: bool = True

    def __post_init__(self) -> None:
        if len(self.delimiter or ",") != 1 or not has_single_bytes(self.encoding):
            raise SchemaError(
                f"delimiter {self.delimiter!r} and encoding {self.encoding!r}: must be one "
                "character, and utf-8 or one with a byte for each."
            )

    def number(self, cell: Any) -> Any:
        """A cell of a column of numbers, with a dot as decimal mark; None if it has no value."""
        if isinstance(cell, str):
            text = cell.strip()
            if not text or text in self._no_value:
                return None
            cell = text if self.decimal == "." else text.translate(_COMMA)
        elif cell != cell:
            return None
        return None if self._no_numbers and _float(cell) in self._no_numbers else cell

    @cached_property
    def _no_value(self) -> frozenset[str]:
        return frozenset(self.missing_values)

    @cached_property
    def _floats(self) -> list[float]:
        """The missing values as numbers, NaN for those that are none."""
        texts = (text if self.decimal == "." else text.translate(_COMMA) for text in self._no_value)
        return [*map(_float, texts)]

    @cached_property
    def _no_numbers(self) -> frozenset[float]:
        """Those of the missing values that are numbers, which may be written in several ways."""
        return frozenset(filter(math.isfinite, self._floats))

    @property
    def keeps_numbers(self) -> bool:
        """Whether every number is a value: none of the missing values is a number."""
        return all(map(math.isnan, self._floats))


USUAL_FORMAT = TableFormat()


def stated(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The dict_factory with which asdict states formats: plan digests and schemas of before do not
    have the field `quoted`."""
    return {name: value for name, value in fields if (name, value) != ("quoted", True)}


_COMMA = str.maketrans(",.", ".,")  # 1.234,5 is no number: thousands are not read


def _float(cell: Any) -> float:
    """The number in a cell, or NaN if it has none."""
    try:
        return math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True)
class Feature:
    """One feature of a record.

    dtype: of its values.
    shape: () is one value, (n,) n values, (a, b) a*b values in row-major order, (None,) any number.
    optional: the feature may be absent.
    content: the meaning of bytes.
    doc: a one-line description.
    channels: number of channels of an image if equal in all records. TFDS decodes to this number.
    unit: of times, such as "ms since 1970-01-01 UTC".
    missing: the cell in place of one without a value."""

    dtype: Dtype
    shape: tuple[Count | None, ...] = field(default=(), metadata=REQUIRED)
    optional: bool = False
    content: Content = "raw"
    doc: str = ""
    channels: int | None = None
    unit: str = ""
    missing: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise SchemaError(f"dtype {self.dtype!r} is not one of {', '.join(get_args(Dtype))}.")
        if self.content not in get_args(Content) or (
            self.content != "raw" and self.dtype != "bytes"
        ):
            raise SchemaError(
                f"content {self.content!r} of dtype {self.dtype}: must be raw; only bytes may also "
                "be text or image."
            )
        if self.channels is not None and (
            self.content != "image" or self.channels not in (1, 3, 4)
        ):
            raise SchemaError(
                f"channels {self.channels} of content {self.content}: must be 1, 3 or 4, and only "
                "for an image."
            )
        if None in self.shape and len(self.shape) != 1:
            raise SchemaError(
                f"shape {self.shape} has an unknown dimension, which must be the only one: (None,)."
            )

    @cached_property
    def num_values(self) -> int | None:
        """Number of values per record; None for any number."""
        shape: Any = self.shape
        return None if None in shape else math.prod(shape)


@dataclass(frozen=True)
class Labels:
    """The names of the numbers in the label feature `key`: label `base + i` is names[i]."""

    key: str
    base: Annotated[int, msgspec.Meta(ge=-(10**7), le=10**7)]
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.names)

    def name_of(self, label: int) -> str | None:
        """The name of a label; None for a label outside the range."""
        place = label - self.base
        return self.names[place] if 0 <= place < self.count else None

    def of(self, values: Mapping[str, Sequence[Any]]) -> list[int]:
        """The labels of a record with these values, any number of them."""
        return [label for label in values.get(self.key, ()) if isinstance(label, int)]


@dataclass(frozen=True)
class Schema:
    """A named set of features. Equal schemas describe the same bytes. Without features, records are
    opaque.

    table: how the texts of its table were read. files: pattern of shard names. version: for TFDS.
    Stock readers of known datasets expect certain names and versions. tfds: name -> text of the
    files for TFDS, to be written unchanged instead of those made from the features. upright:
    whether the conversion turned images upright."""

    name: str
    features: Mapping[str, Feature]
    files: ShardFiles = SHARD_FILES
    version: str = _TFDS_VERSION
    tfds: Mapping[SidecarName, str] = field(default_factory=dict)
    table: TableFormat = USUAL_FORMAT
    upright: bool = False

    @property
    def opaque(self) -> bool:
        """Whether records may contain any bytes."""
        return not self.features

    @cached_property
    def encoded_keys(self) -> tuple[tuple[str, bytes], ...]:
        """Each key and its UTF-8 bytes, sorted by these: the order of features in an Example."""
        return tuple(
            sorted(((key, key.encode()) for key in self.features), key=lambda pair: pair[1])
        )

    def to_json(self) -> Json:
        """Plain JSON types, with sorted features and without default values of the other fields."""
        fields = {
            "files": self.files,
            "version": self.version,
            "tfds": dict(sorted(self.tfds.items())),
            "table": asdict(self.table, dict_factory=stated),
            "upright": self.upright,
        }
        rare = {
            key: value
            for key, value in fields.items()
            if getattr(self, key) != getattr(_PLAIN_SCHEMA, key)
        }
        features = {key: _feature_json(feature) for key, feature in sorted(self.features.items())}
        return {"name": self.name, "features": features, **rare}


_PLAIN_SCHEMA = Schema("", {})
_RARE = ("channels", "unit", "missing")


def _feature_json(feature: Feature) -> Json:
    fields = asdict(feature) | {"shape": list(feature.shape)}
    return {key: value for key, value in fields.items() if key not in _RARE or value}


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of the values of one column that are not missing. deviation: of the population.
    categories: class -> count."""

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
    """Statistics by split and column; empty where no table was converted. Raises SchemaError for a
    damaged file."""
    path = join(directory, COLUMNS_FILE)
    if not storage.exists(path):
        return {}
    return read_sealed(
        JsonFile(path, SchemaError, "Convert the table again."), storage.read(path), _File
    ).splits


def update_statistics(storage: Storage, directory: str, split: str, statistics: Statistics) -> None:
    """Replaces those of a split."""

    def changed(_: bytes | None) -> bytes:
        try:
            others = read_statistics(storage, directory)
        except SchemaError:
            others = {}
        file = _File(dict(sorted({**others, split: statistics}.items())))
        return json.dumps(sealed(asdict(file)), indent=1).encode()

    storage.update(join(directory, COLUMNS_FILE), changed)
