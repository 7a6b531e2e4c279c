"""Blocks of rows of a table: the rows of `Table.rows`, with the cells of each column together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow

from pipeline.raw.rows import TableRow

ABSENT: Any = type("Absent", (), {})()
"""In place of a cell that a row does not have."""
Cells = Any
"""The cells of a column. An array of Arrow has texts, also as a dictionary, or numbers: integers up
to int64, floats or bools; and anything for rows that cannot be read. A sequence has objects, or
ABSENT."""


@dataclass
class Block:
    """Consecutive rows of a table. line, offset, lines: int64 [rows], as of TableRow. errors: why
    rows cannot be read, by number.

    The cells are in `columns`, or in `rows`."""

    line: np.ndarray
    offset: np.ndarray
    lines: np.ndarray
    errors: Mapping[int, str]
    columns: Mapping[str, Cells] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, rows: Iterable[TableRow]) -> "Block":
        """The block of these rows."""
        rows = [*rows]
        places = [(row.line, row.offset, row.lines) for row in rows]
        line, offset, lines = np.array(places, np.int64).reshape(-1, 3).T
        errors = {i: row.error for i, row in enumerate(rows) if row.error}
        return cls(line, offset, lines, errors, rows=[row.cells for row in rows])

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: np.ndarray) -> "Block":
        """The block of these rows only. rows: ascending."""
        if len(rows) == len(self):
            return self
        errors = {i: self.errors[row] for i, row in enumerate(rows.tolist()) if row in self.errors}
        columns = {name: taken(cells, rows) for name, cells in self.columns.items()}
        of_rows = None if self.rows is None else taken(self.rows, rows)
        places = self.line[rows], self.offset[rows], self.lines[rows]
        return Block(*places, errors, columns, of_rows)

    def first(self, rows: int) -> "Block":
        """The block of this many rows from its beginning."""
        return self.take(np.arange(rows))

    @property
    def names(self) -> list[str]:
        """The columns, in the order in which rows have them."""
        rows = [self.columns] if self.rows is None else self.rows
        return list(dict.fromkeys(name for row in rows for name in row))

    def cells(self, name: str) -> Cells:
        """The cells of a column."""
        if self.rows is not None:
            return [row.get(name, ABSENT) for row in self.rows]
        return self.columns.get(name, [ABSENT] * len(self))

    def by_row(self, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """The cells of each row in these columns, without those that it does not have."""
        every = np.arange(len(self))
        columns = [objects(self.cells(name), every) for name in names]
        for row in every.tolist():
            pairs = zip(names, columns, strict=True)
            yield {name: cells[row] for name, cells in pairs if cells[row] is not ABSENT}


def taken(cells: Cells, rows: np.ndarray) -> Any:
    """The cells of these rows."""
    if isinstance(cells, pyarrow.Array):
        return cells.take(pyarrow.array(rows))
    return [cells[row] for row in rows.tolist()]


def objects(cells: Cells, rows: np.ndarray) -> Sequence[Any]:
    """The cells of these rows as Python objects."""
    found = taken(cells, rows)
    return found.to_pylist() if isinstance(found, pyarrow.Array) else found
