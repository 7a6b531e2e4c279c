"""The values of one feature of many records."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """The values of all records, one after the other, and how many each has: int64 [n]."""

    values: np.ndarray
    lengths: np.ndarray

    def rows(self) -> Sequence[np.ndarray]:
        """The values of each record."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


Column = np.ndarray | Ragged
Columns = dict[str, Column]


def objects(values: Sequence[bytes]) -> np.ndarray:
    """object [n]: np.array would drop the zeros at the end of bytes."""
    made = np.empty(len(values), object)
    made[:] = values
    return made


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
