"""The values of one feature of many records."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.description import Renumbering
from pipeline.raw.cells import MISSING


class Ragged(NamedTuple):
    """The values of all records, one after the other, and how many each has: int64 [n]."""

    values: np.ndarray
    lengths: np.ndarray

    def rows(self) -> Sequence[np.ndarray]:
        """The values of each record."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


Column = np.ndarray | Ragged
Columns = dict[str, Column]


def renumbered(columns: Mapping[str, Column], by: Mapping[str, Renumbering]) -> tuple[Columns, np.ndarray | None]:
    """The columns in `by` with other numbers; and how many values of each record became missing by that, int32 [n], or
    None if none can. Raises SchemaError for a number that is no class."""
    numbers, hidden = Columns(), None
    for key, renumber in by.items():
        column = columns[key]
        values = column.values if isinstance(column, Ragged) else column
        made = renumber(values)
        numbers[key] = Ragged(made, column.lengths) if isinstance(column, Ragged) else made
        if renumber.hides:
            gone = _per_record(column, (made == MISSING) & (values != MISSING))
            hidden = gone if hidden is None else hidden + gone
    return numbers, hidden


def _per_record(column: Column, flags: np.ndarray) -> np.ndarray:
    """int32 [n]: how many of each record's values have a flag."""
    if not isinstance(column, Ragged):
        return flags.sum(axis=tuple(range(1, flags.ndim)), dtype=np.int32)
    records = len(column.lengths)
    return np.bincount(np.repeat(np.arange(records), column.lengths), flags, records).astype(np.int32)


def merged(parts: Sequence[tuple[np.ndarray, Columns]]) -> Columns:
    """The columns of all rows, from those of some."""
    merged, order = Columns(), np.argsort(np.concatenate([rows for rows, _ in parts]))
    for key in parts[0][1]:
        columns: Sequence[Any] = [columns[key] for _, columns in parts]
        if isinstance(columns[0], Ragged):
            rows = [row for column in columns for row in column.rows()]
            lengths = np.concatenate([column.lengths for column in columns])[order]
            merged[key] = Ragged(np.concatenate([rows[at] for at in order.tolist()]), lengths)
        else:
            merged[key] = np.concatenate(columns)[order]
    return merged
