"""The columns of a table as features of the same names.

Texts of errors about cells are part of plan digests."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from ctypes import c_float
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from pipeline.checks import did_you_mean
from pipeline.raw.cells import (
    MISSING,
    SPELLINGS,
    cell_of,
    class_cells,
    class_number,
    document_cell,
    integer_cell,
    is_blank,
    number_cell,
    number_or_nan,
    text_cell,
)
from pipeline.shards.example import Value
from pipeline.shards.schema import USUAL_FORMAT, Content, Dtype, Feature, Labels, TableFormat

_FEATURES: Mapping[str, tuple[Dtype, Content]] = {
    "float32": ("float32", "raw"),
    "int64": ("int64", "raw"),
    "category": ("int64", "raw"),
    "text": ("bytes", "text"),
    "bytes": ("bytes", "raw"),
    "image": ("bytes", "image"),
    "file": ("bytes", "raw"),
}
CLASS_NAME, SKIP = "class name", "skip"
KINDS = (*_FEATURES, SKIP)
OF_FILES = ("image", "file")  # of KINDS
MOST_EXACT = 2**24  # of integers in float32
ROUNDED = f"numbers above {MOST_EXACT:,} that were rounded, because float32 holds 24 bits: {{}}"
ONE_LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]+")

FileOf = Callable[[Any, str], bytes]
"""What a record stores for a cell of the kind image or file."""


@dataclass(frozen=True)
class Column:
    """A column and its feature. kind: one of KINDS, or CLASS_NAME. shape: of the Feature. names: of
    its classes.

    missing: the cell in place of one without a number, or without a class.
    key: of the feature; "" for the name.
    base: the number of the first class.
    separator: of several classes in a cell.
    required: a row without text or class, or without the cell, is an error.
    parts: the columns of numbers that make up the feature.
    unit: of times."""

    name: str
    kind: str
    shape: tuple[int | None, ...] = ()
    names: tuple[str, ...] = ()
    missing: str | None = None
    key: str = ""
    base: int = 0
    separator: str | None = None
    required: bool = False
    parts: tuple[str, ...] = ()
    unit: str = ""

    def __str__(self) -> str:
        classes = (
            f" of {len(self.names):,} class{'es' * (len(self.names) != 1)}"
            if self.kind == "category"
            else ""
        )
        shape = f" {[*self.shape]}".replace("None", "any number") * bool(self.shape)
        unit = f" in {self.unit}" * bool(self.unit)
        return f"{self.name or '(no name)'} {self.kind}{classes}{shape}{unit}"

    @property
    def feature_key(self) -> str:
        """The key of the feature."""
        return self.key or self.name

    @property
    def feature(self) -> Feature:
        """The feature that a record has."""
        dtype, content = _FEATURES["text" if self.kind == CLASS_NAME else self.kind]
        missing = f"; {MISSING} if missing" * (not self.required)
        many = "any number of classes" if self.separator else f"a class{missing}"
        classes = f"{self.base}..{self.base + len(self.names) - 1}, {many}"
        docs = {"category": classes, CLASS_NAME: "name of the class", "text": "UTF-8"}
        doc = ", ".join(self.parts) or docs.get(self.kind, "")
        return Feature(
            dtype, self.shape, content=content, doc=doc, unit=self.unit, missing=self.missing
        )

    def value(
        self,
        cells: Mapping[str, Any],
        file_of: FileOf,
        format: TableFormat = USUAL_FORMAT,
    ) -> Value:
        """The feature's value in a row. Raises ValueError, and what file_of raises."""
        if self.parts:
            return [number_cell(part, format.number(cell_of(cells, part))) for part in self.parts]
        cell = cell_of(cells, self.name) if self.required else cells.get(self.name)
        if self.separator:
            return [self._class(name) for name in class_cells(self.name, cell, self.separator)]
        if not self.shape:
            return self._item(cell, file_of, format)
        one = [] if format.number(cell) is None else [cell]
        items = cell if isinstance(cell, list) else one
        return [self._item(item, file_of, format) for item in items]

    def content(self, cells: Mapping[str, Any], format: TableFormat) -> tuple[str, Any]:
        """The name and the cells of a row: equal for those that mean the same in other tables, even
        if more rows give the column another kind: 7, 7.0 and "7", or true and 1. Raises
        ValueError."""
        return self.name, [self._plain(item, format) for item in self._items(cells)]

    def num_rounded(self, value: Any, cells: Mapping[str, Any], format: TableFormat) -> int:
        """How many numbers of the value of these cells float32 changes, other than in their
        fractions."""
        numbers = value if isinstance(value, list) else [value]
        if all(abs(number) <= MOST_EXACT for number in numbers):  # most are
            return 0
        return sum(
            abs(number) > MOST_EXACT
            and Decimal(c_float(number).value) != Decimal(format.number(item) or number)
            for number, item in zip(numbers, self._items(cells), strict=False)
        )

    def _items(self, cells: Mapping[str, Any]) -> Sequence[Any]:
        items = cells.get(self.name)
        if self.separator:
            return class_cells(self.name, items, self.separator)
        if self.parts:
            return [*map(cells.get, self.parts)]
        return items if isinstance(items, list) else [items]

    def _plain(self, item: Any, format: TableFormat) -> str | float:
        try:
            number = float(item)
        except (TypeError, ValueError, OverflowError):
            item = file_in(item)
            if isinstance(item, bytes):
                return hashlib.blake2b(item).hexdigest()
            text = str(item or "").strip()
            number = format.number(text)
            if number is None:
                number = text = self.missing or "nan"
            try:
                number = float(SPELLINGS.get(text, [number])[-1])
            except ValueError:
                return text
        return c_float(number).value if abs(number) < MOST_EXACT else number

    def _item(self, cell: Any, file_of: FileOf, format: TableFormat) -> Any:
        if self.kind in ("float32", "int64"):  # first, as most are
            number = format.number(cell)
            number = self.missing if number is None else number
            if self.kind == "float32":
                return number_or_nan(self.name, number)
            return integer_cell(self.name, number, self.unit)
        if self.kind in ("image", "file"):
            return file_of(cell, self.kind)
        if self.required and self.kind == "text":
            return text_cell(self.name, cell).encode()
        if self.kind in ("text", "bytes"):
            if cell is None:
                return b""
            if self.kind == "bytes" and isinstance(cell, bytes):
                return cell
            return document_cell(self.name, str(cell) if type(cell) is int else cell)
        if is_blank(cell) and not (self.required and self.missing is None):
            if self.missing is None:
                return MISSING
            cell = self.missing
        number = self._class(cell)
        return self.names[number - self.base].encode() if self.kind == CLASS_NAME else number

    def _class(self, cell: Any) -> int:
        number = class_number(self._numbers, cell)
        if number == MISSING:
            (name,) = class_cells(self.name, cell, None)
            known = (
                did_you_mean(name, self.names)
                if len(self.names) <= 20
                else f" {len(self.names)} are known."
            )
            raise ValueError(f"unknown label {name!r}.{known}")
        return number

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        numbers = zip(self.names, itertools.count(self.base))
        return {name: number for name, number in numbers if ONE_LINE.fullmatch(name)}


def file_in(cell: Any) -> Any:
    """The bytes of a file, or its name, in a cell."""
    return cell.get("bytes") or cell.get("path") if isinstance(cell, Mapping) else cell


def features_of(columns: Iterable[Column]) -> dict[str, Feature]:
    """The features of the columns, by key."""
    return {column.feature_key: column.feature for column in columns}


def needed_for(
    columns: Iterable[Column], *others: str | None
) -> tuple[Set[str], Mapping[str, str]]:
    """Which columns of a table these features need, and the units of their times. others: more
    columns, if any."""
    units = {name: column.unit for column in columns for name in column.parts or [column.name]}
    return {*units, *filter(None, others)}, units


def labels_of(columns: Iterable[Column]) -> Labels | None:
    """Names of the label numbers: of the first class that no row may lack."""
    labels = (column for column in columns if column.kind == "category" and column.required)
    return next((Labels(label.feature_key, label.base, label.names) for label in labels), None)
