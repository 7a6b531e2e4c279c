"""Targets of tables: one label per record, several labels, numbers, or nothing.

Each kind converts the cells of a row to numbers, which references store as text, and these to features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from converters.raw.class_names import names_digest
from converters.table.cells import Cells, class_cells, number_cell
from pipeline.errors import did_you_mean
from pipeline.shards.example import Value
from pipeline.shards.schema import Feature, Labels


class Target:
    """A kind of target; this base class adds nothing to a record."""

    @property
    def labels(self) -> Labels | None:
        """The names of the label numbers, if there are labels."""
        return None

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features it adds to a record."""
        return {}

    def digest_fields(self) -> Mapping[str, Any]:
        """JSON values of everything in it that changes bytes."""
        return {}

    def numbers(self, cells: Cells) -> Sequence[int | float]:
        """The numbers in a row. Raises ValueError, whose text is part of plan digests, for a cell that does not fit."""
        del cells
        return []

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        """A value for each feature from the numbers as text."""
        del numbers
        return {}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """int64: approximate bytes of the values of each record. numbers: S, the numbers of each record as text."""
        return np.zeros(len(numbers), np.int64)


class _Named(Target):
    """Labels by name: the base of both kinds."""

    column: str
    names: tuple[str, ...]
    key: str
    base = 0
    separator: str | None = None

    @property
    def labels(self) -> Labels:
        return Labels(self.key, self.base, self.names)

    def numbers(self, cells: Cells) -> Sequence[int]:
        return [self._number(name) for name in class_cells(cells, self.column, self.separator)]

    @cached_property
    def _number_of(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names, start=self.base)}

    def _number(self, name: str) -> int:
        if name not in self._number_of:
            known = did_you_mean(name, self.names) if len(self.names) <= 20 else f" {len(self.names)} are known."
            raise ValueError(f"unknown label {name!r}.{known}")
        return self._number_of[name]


@dataclass(frozen=True)
class SingleLabel(_Named):
    """One class name per row. key: the feature. base: number of the first class. text_key: the feature of the name."""

    column: str
    names: tuple[str, ...]
    key: str = "label"
    base: int = 0
    text_key: str = ""

    @property
    def features(self) -> Mapping[str, Feature]:
        last = self.base + len(self.names) - 1
        text = {self.text_key: Feature("bytes", content="text", doc="name of the class")} if self.text_key else {}
        return {self.key: Feature("int64", doc=f"{self.base}..{last}, a class"), **text}

    def digest_fields(self) -> Mapping[str, Any]:
        return {"label_column": self.column, "classes": names_digest(self.names)}

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        label = int(numbers[0])
        text = {self.text_key: self.names[label - self.base].encode()} if self.text_key else {}
        return {self.key: label, **text}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """See Target. Rejected rows have no number."""
        if not self.text_key:
            return super().sizes(numbers)
        names = np.array([len(name.encode()) for name in self.names], np.int64)
        return names[np.where(numbers == b"", str(self.base).encode(), numbers).astype(np.int64) - self.base]


@dataclass(frozen=True)
class MultiLabel(_Named):
    """Any number of class names per row: a list in JSON, or separated names."""

    column: str
    names: tuple[str, ...]
    separator: str | None = "|"
    key: str = "labels"

    @property
    def features(self) -> Mapping[str, Feature]:
        return {self.key: Feature("int64", (None,), doc=f"0..{len(self.names) - 1}, any number of classes")}

    def digest_fields(self) -> Mapping[str, Any]:
        return {"labels_column": self.column, "separator": self.separator, "classes": names_digest(self.names)}

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        return {self.key: [int(number) for number in numbers]}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        varint_bytes = max(1, -(-(len(self.names) - 1).bit_length() // 7))  # of the largest label
        return (np.char.count(numbers, b" ") + (numbers != b"")) * varint_bytes


@dataclass(frozen=True)
class Numbers(Target):
    """One finite float32 number per column."""

    columns: tuple[str, ...]
    key: str = "target"

    @property
    def features(self) -> Mapping[str, Feature]:
        return {self.key: Feature("float32", (len(self.columns),), doc=", ".join(self.columns))}

    def digest_fields(self) -> Mapping[str, Any]:
        return {"target_columns": list(self.columns)}

    def numbers(self, cells: Cells) -> Sequence[float]:
        return [number_cell(cells, column) for column in self.columns]

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        return {self.key: [float(number) for number in numbers]}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        return np.full(len(numbers), 4 * len(self.columns))


@dataclass(frozen=True)
class Unlabelled(Target):
    """No target."""
