"""Blocks of rows of a table: the same rows as TableRow, with the cells of a column together."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.raw.rows import TableRow
from pipeline.raw.text_cells import TextCells

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT"})()
"""In place of a cell that a row does not have."""


class NumberCells(NamedTuple):
    """A column of integers up to int64, float32, float64 or bools. nulls: as of TextCells."""

    values: np.ndarray
    nulls: np.ndarray | None = None

    def at(self, i: int) -> float | None:
        """Cell i."""
        return None if self.nulls is not None and self.nulls[i] else self.values[i].item()

    def take(self, rows: np.ndarray) -> "NumberCells":
        """The cells of these rows."""
        return NumberCells(self.values[rows], None if self.nulls is None else self.nulls[rows])


Cells = TextCells | NumberCells | Sequence[Any]
"""Those of a column, with anything or ABSENT for rows that cannot be read. A sequence has the
objects."""


@dataclass
class Block(ABC):
    """Some of the rows of a table, one after the other. line, offset, size, lines: int64 [rows], as
    of TableRow. errors: why rows cannot be read, by number."""

    line: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    lines: np.ndarray
    errors: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: np.ndarray) -> Self:
        """The block of these rows only."""
        errors = {i: self.errors[row] for i, row in enumerate(rows.tolist()) if row in self.errors}
        places = {name: getattr(self, name)[rows] for name in ("line", "offset", "size", "lines")}
        return replace(self, errors=errors, **places, **self._taken(rows))

    @abstractmethod
    def _taken(self, rows: np.ndarray) -> Mapping[str, Any]:
        """The other fields of `take`."""

    @abstractmethod
    def cells(self, name: str) -> Cells:
        """The cells of a column."""

    @abstractmethod
    def cells_at(self, i: int) -> Mapping[str, Any]:
        """The cells of a row by column."""

    def row(self, i: int) -> TableRow:
        """A row, as Table.rows has it."""
        line, offset, size, lines = (
            int(each[i]) for each in (self.line, self.offset, self.size, self.lines)
        )
        return TableRow(line, offset, size, self.cells_at(i), self.errors.get(i, ""), lines)


@dataclass
class ColumnBlock(Block):
    """Rows that are split into columns. of_folders: the cells of all rows that folders state."""

    columns: Mapping[str, Cells]
    of_folders: Mapping[str, str | None] = field(default_factory=dict)

    def _taken(self, rows: np.ndarray) -> Mapping[str, Any]:
        return {"columns": {name: _take(cells, rows) for name, cells in self.columns.items()}}

    def cells(self, name: str) -> Cells:
        """See Block."""
        if name in self.of_folders or name not in self.columns:
            return [self.of_folders.get(name, ABSENT)] * len(self)
        return self.columns[name]

    def cells_at(self, i: int) -> Mapping[str, Any]:
        """See Block."""
        columns = {} if i in self.errors else self.columns
        return {name: cell_at(cells, i) for name, cells in columns.items()} | {**self.of_folders}


@dataclass
class RowBlock(Block):
    """Rows that are objects."""

    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, rows: Iterable[TableRow]) -> "RowBlock":
        """The block of these rows."""
        rows = [*rows]
        places = [(row.line, row.offset, row.size, row.lines) for row in rows]
        errors = {i: row.error for i, row in enumerate(rows) if row.error}
        line, offset, size, lines = np.array(places, np.int64).reshape(-1, 4).T
        return cls(line, offset, size, lines, errors, [row.cells for row in rows])

    def _taken(self, rows: np.ndarray) -> Mapping[str, Any]:
        return {"rows": _take(self.rows, rows)}

    def cells(self, name: str) -> Cells:
        """See Block."""
        return [row.get(name, ABSENT) for row in self.rows]

    def cells_at(self, i: int) -> Mapping[str, Any]:
        """See Block."""
        return self.rows[i]


def _take(cells: Cells, rows: np.ndarray) -> Any:
    if isinstance(cells, TextCells | NumberCells):
        return cells.take(rows)
    return [cells[row] for row in rows.tolist()]


def cell_at(cells: Cells, i: int) -> Any:
    """Cell i as an object."""
    return cells.at(i) if isinstance(cells, TextCells | NumberCells) else cells[i]
