"""The values of one feature of many records."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.description import Renumbering
from pipeline.raw.cells import MISSING
from pipeline.shards.example import Ragged
from pipeline.spec import objects


class Slices(Sequence[bytes]):
    """One value of each record, cut out of its payload on access. So the images of a batch are
    never in memory together: copying them takes a tenth of the time of decoding."""

    def __init__(
        self, payloads: Sequence[bytes], rows: np.ndarray, begins: np.ndarray, sizes: np.ndarray
    ) -> None:
        self._payloads = payloads
        places = (rows, begins, begins + sizes)
        self._places = list(zip(*(each.tolist() for each in places), strict=True))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: Any) -> Any:
        row, begin, end = self._places[at]
        return self._payloads[row][begin:end]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return objects(list(self))


Column = np.ndarray | Ragged | Slices
Columns = dict[str, Column]


def renumbered(
    columns: Mapping[str, Column], by: Mapping[str, Renumbering], record_ids: np.ndarray
) -> tuple[Columns, np.ndarray | None]:
    """The columns of these records in `by`, renumbered; and how many values of each became missing,
    int32 [n], or None if none can. Raises SchemaError for a number that is not a class."""
    numbers = Columns()
    hidden = None
    for key, renumber in by.items():
        column: Any = columns[key]
        values, owners = column, record_ids
        if isinstance(column, Ragged):
            values, owners = column.values, np.repeat(record_ids, column.lengths)
        renumbered_values = renumber(values, owners)
        gone = (renumbered_values == MISSING) & (values != MISSING)
        if isinstance(column, Ragged):
            numbers[key] = Ragged(renumbered_values, column.lengths)
            records = np.arange(len(column.lengths))
            counts = np.bincount(np.repeat(records, column.lengths), gone, len(records))
        else:
            numbers[key] = renumbered_values
            counts = gone.sum(axis=tuple(range(1, gone.ndim)))
        if renumber.hides:
            hidden = (0 if hidden is None else hidden) + counts.astype(np.int32)
    return numbers, hidden


def merged(parts: Sequence[tuple[np.ndarray, Columns]]) -> Columns:
    """The columns of all rows, from columns of some of them."""
    columns_of_all = Columns()
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    for key in parts[0][1]:
        columns: Sequence[Any] = [columns[key] for _, columns in parts]
        if isinstance(columns[0], Ragged):
            rows = [row for column in columns for row in column.rows()]
            lengths = np.concatenate([column.lengths for column in columns])[order]
            values = np.concatenate([rows[at] for at in order.tolist()])
            columns_of_all[key] = Ragged(values, lengths)
        else:
            columns_of_all[key] = np.concatenate([np.asarray(each) for each in columns])[order]
    return columns_of_all
