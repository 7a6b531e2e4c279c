"""Blocks of rows of a table: the same rows as TableRow, with the cells of a column together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow

from pipeline.raw.rows import TableRow

ABSENT: Any = type("Absent", (), {})()
"""In place of a cell that a row does not have."""
Cells = Any
"""Those of a column, with anything for rows that cannot be read. An array of Arrow has texts, also
as a dictionary, or numbers: integers up to int64, floats or bools. A sequence has objects, or
ABSENT."""


@dataclass
class Block:
    """Some of the rows of a table, one after the other. line, offset, size, lines: int64 [rows], as
    of TableRow. errors: why rows cannot be read, by number.

    Its cells are in columns, or in rows. of_folders: those that folders state, of all rows."""

    line: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    lines: np.ndarray
    errors: Mapping[int, str]
    columns: Mapping[str, Cells] = field(default_factory=dict)
    of_folders: Mapping[str, str | None] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, rows: Iterable[TableRow]) -> "Block":
        """The block of these rows."""
        rows = [*rows]
        places = [(row.line, row.offset, row.size, row.lines) for row in rows]
        line, offset, size, lines = np.array(places, np.int64).reshape(-1, 4).T
        errors = {i: row.error for i, row in enumerate(rows) if row.error}
        return cls(line, offset, size, lines, errors, rows=[row.cells for row in rows])

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: np.ndarray) -> "Block":
        """The block of these rows only. rows: ascending."""
        if len(rows) == len(self):
            return self
        line, offset, size, lines = (
            each[rows] for each in (self.line, self.offset, self.size, self.lines)
        )
        errors = {i: self.errors[row] for i, row in enumerate(rows.tolist()) if row in self.errors}
        columns = {name: taken(cells, rows) for name, cells in self.columns.items()}
        of_rows = None if self.rows is None else taken(self.rows, rows)
        return Block(line, offset, size, lines, errors, columns, self.of_folders, of_rows)

    def first(self, rows: int) -> "Block":
        """The block of this many rows from its beginning."""
        return self.take(np.arange(rows))

    @property
    def names(self) -> list[str]:
        """The columns, in the order in which rows have them."""
        rows = [self.columns] if self.rows is None else self.rows
        return list(dict.fromkeys(name for row in rows for name in (*row, *self.of_folders)))

    def rows_with(self, name: str) -> np.ndarray:
        """int64: the rows that may have cells in a column."""
        have_cells = np.ones(len(self), bool)
        if self.rows is None and name not in self.of_folders:
            have_cells[[*self.errors]] = False
        return np.flatnonzero(have_cells)

    def cells(self, name: str) -> Cells:
        """The cells of a column."""
        if name in self.of_folders:
            return [self.of_folders[name]] * len(self)
        if self.rows is not None:
            return [row.get(name, ABSENT) for row in self.rows]
        return self.columns.get(name, [ABSENT] * len(self))

    def row(self, i: int) -> TableRow:
        """A row, as Table.rows has it."""
        columns = {} if i in self.errors else self.columns
        cells = {name: objects(each, np.array([i]))[0] for name, each in columns.items()}
        cells |= self.rows[i] if self.rows is not None else {}
        line, offset, size, lines = (
            int(each[i]) for each in (self.line, self.offset, self.size, self.lines)
        )
        error = self.errors.get(i, "")
        return TableRow(line, offset, size, {**cells, **self.of_folders}, error, lines)


def taken(cells: Cells, rows: np.ndarray) -> Any:
    """The cells of these rows."""
    if isinstance(cells, pyarrow.Array):
        return cells.take(pyarrow.array(rows))
    return [cells[row] for row in rows.tolist()]


def objects(cells: Cells, rows: np.ndarray) -> Sequence[Any]:
    """The cells of these rows as Python objects."""
    found = taken(cells, rows)
    return found.to_pylist() if isinstance(found, pyarrow.Array) else found
