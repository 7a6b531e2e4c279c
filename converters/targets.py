"""What a table says about each record: one label, several labels, numbers, or nothing.

Each kind turns a row's cells into numbers, which travel with the reference as text, and those into features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from converters.class_names import names_digest
from converters.table_cells import Cells, class_cells, number_cell
from pipeline.shards.errors import did_you_mean
from pipeline.shards.example import Value
from pipeline.shards.schema import Feature, Labels

__all__ = ["MultiLabel", "Numbers", "SingleLabel", "Target", "Unlabelled"]


class Target(Protocol):
    """One kind. A cell that it cannot take is a ValueError that says why."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """That it sets."""
        ...

    @property
    def labels(self) -> Labels | None:
        """Names of the label numbers, if there are labels."""
        ...

    def digest_fields(self) -> Mapping[str, Any]:
        """Everything in it that changes bytes."""
        ...

    def numbers(self, cells: Cells) -> Sequence[int | float]:
        """What a row says."""
        ...

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        """A value for each feature, from the numbers as text."""
        ...

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """int64: how many bytes the values of each record take, nearly. numbers: S, the numbers of each as text."""
        ...


class _Named:
    """Classes by name, shared by both kinds of labels."""

    names: tuple[str, ...]
    base: int

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
    """The name of a class in each row. key: the feature. base: number of the first class.

    text_key: a feature for the name, "" for none."""

    column: str
    names: tuple[str, ...]
    key: str = "label"
    base: int = 0
    text_key: str = ""

    @property
    def features(self) -> Mapping[str, Feature]:
        """See Target."""
        last = self.base + len(self.names) - 1
        text = {self.text_key: Feature("bytes", content="text", doc="name of the class")} if self.text_key else {}
        return {self.key: Feature("int64", doc=f"{self.base}..{last}, a class"), **text}

    @property
    def labels(self) -> Labels:
        """See Target."""
        return Labels(self.key, self.base, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Target."""
        return {"label_column": self.column, "classes": names_digest(self.names)}

    def numbers(self, cells: Cells) -> Sequence[int]:
        """See Target."""
        (name,) = class_cells(cells, self.column, None)
        return [self._number(name)]

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        """See Target."""
        label = int(numbers[0])
        text = {self.text_key: self.names[label - self.base].encode()} if self.text_key else {}
        return {self.key: label, **text}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """See Target. Rows that the scan rejects have no number."""
        if not self.text_key:
            return np.zeros(len(numbers), np.int64)
        names = np.array([len(name.encode()) for name in self.names], np.int64)
        return names[np.where(numbers == b"", str(self.base).encode(), numbers).astype(np.int64) - self.base]


@dataclass(frozen=True)
class MultiLabel(_Named):
    """Any number of classes in each row: a list in JSON, or names with a separator between them."""

    column: str
    names: tuple[str, ...]
    separator: str = "|"
    key: str = "labels"
    base = 0

    @property
    def features(self) -> Mapping[str, Feature]:
        """See Target."""
        return {self.key: Feature("int64", (None,), doc=f"0..{len(self.names) - 1}, any number of classes")}

    @property
    def labels(self) -> Labels:
        """See Target."""
        return Labels(self.key, 0, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Target."""
        return {"labels_column": self.column, "separator": self.separator, "classes": names_digest(self.names)}

    def numbers(self, cells: Cells) -> Sequence[int]:
        """See Target."""
        return [self._number(name) for name in class_cells(cells, self.column, self.separator)]

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        """See Target."""
        return {self.key: [int(number) for number in numbers]}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """See Target."""
        return (np.char.count(numbers, b" ") + (numbers != b"")) * _varint_bytes(len(self.names) - 1)


@dataclass(frozen=True)
class Numbers:
    """A finite number from each of some columns, as float32."""

    columns: tuple[str, ...]
    key: str = "target"
    labels = None

    @property
    def features(self) -> Mapping[str, Feature]:
        """See Target."""
        return {self.key: Feature("float32", (len(self.columns),), doc=", ".join(self.columns))}

    def digest_fields(self) -> Mapping[str, Any]:
        """See Target."""
        return {"target_columns": list(self.columns)}

    def numbers(self, cells: Cells) -> Sequence[float]:
        """See Target."""
        return [number_cell(cells, column) for column in self.columns]

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        """See Target."""
        return {self.key: [float(number) for number in numbers]}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """See Target."""
        return np.full(len(numbers), 4 * len(self.columns))


@dataclass(frozen=True)
class Unlabelled:
    """Nothing."""

    labels = None

    @property
    def features(self) -> Mapping[str, Feature]:
        """See Target."""
        return {}

    def digest_fields(self) -> Mapping[str, Any]:
        """See Target."""
        return {}

    def numbers(self, cells: Cells) -> Sequence[int]:
        """See Target."""
        del cells
        return []

    def values(self, numbers: Sequence[str]) -> Mapping[str, Value]:
        """See Target."""
        del numbers
        return {}

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """See Target."""
        return np.zeros(len(numbers), np.int64)


def _varint_bytes(largest: int) -> int:
    return max(1, -(-largest.bit_length() // 7))
