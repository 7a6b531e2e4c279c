"""The values of one feature of many records, and the numbers in many packed lists: varints and
float32 as protobuf writes them.

Wire format: https://protobuf.dev/programming-guides/encoding/"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.description import Renumbering
from pipeline.raw.cells import MISSING
from pipeline.spec import objects

ONE_BYTE = 128  # a varint below it takes one
_FEW_BYTES = 32  # per list: fewer are collected by index, more as slices


class Ragged(NamedTuple):
    """The values of all records, one after the other, and how many each has: int64 [n]."""

    values: np.ndarray
    lengths: np.ndarray

    def rows(self) -> Sequence[np.ndarray]:
        """The values of each record."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


class Slices(Sequence[bytes]):
    """One value of each record, cut out of it when it is asked for. So the photographs of a batch
    are never in memory together, which costs as much as a tenth of decoding them."""

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
    columns: Mapping[str, Column], by: Mapping[str, Renumbering]
) -> tuple[Columns, np.ndarray | None]:
    """The columns in `by` with other numbers; and how many values of each record became missing by
    that, int32 [n], or None if none can. Raises SchemaError for a number that is no class."""
    numbers = Columns()
    hidden = None
    for key, renumber in by.items():
        column: Any = columns[key]
        values = column.values if isinstance(column, Ragged) else column
        renumbered_values = renumber(values)
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
    """The columns of all rows, from those of some."""
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


def floats(
    data: np.ndarray, begins: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """The values in these ranges, float32, and how many are in each: None if one is cut."""
    if (sizes % 4).any():
        return data, None
    return _joined(data, begins, sizes).view("<f4"), sizes // 4


def integers(
    data: np.ndarray, begins: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """The varints in these ranges, and how many are in each: None if one is cut."""
    packed = _joined(data, begins, sizes)
    last = packed < ONE_BYTE
    stops = np.cumsum(sizes)
    if not last[stops[sizes > 0] - 1].all():
        return data, None
    if last.all():
        return packed.astype(np.int32), sizes
    ends = np.flatnonzero(last)
    firsts = np.zeros_like(ends)
    np.add(ends[:-1], 1, out=firsts[1:])
    longest = int((ends - firsts).max()) + 1
    padded = np.concatenate([packed, np.zeros(16, np.uint8)])
    numbers = _varints(padded, firsts, np.uint32 if longest <= 4 else np.uint64)
    counts = np.diff(np.searchsorted(ends, stops), prepend=0)
    return numbers, counts if longest <= 10 else None


def _varints(data: np.ndarray, firsts: np.ndarray, word: type[np.unsignedinteger]) -> np.ndarray:
    """The varints that begin at these places, as signed integers: up to four bytes in uint32, ten
    in uint64."""
    size = np.dtype(word).itemsize
    words = np.ndarray((len(data) - size,), np.dtype(word).newbyteorder("<"), data, strides=(1,))
    words = words.take(firsts)  # a third of the time of words[firsts]
    ends = ~words & word(0x8080808080808080 >> 8 * (8 - size))  # set in bytes that end a number
    longer = np.flatnonzero(ends == 0)
    words &= ends ^ (ends - word(1))  # up to the first of them
    numbers = words & word(0x7F)
    for place in range(1, size):
        np.right_shift(words, word(place), out=ends)
        ends &= word(0x7F << 7 * place)
        numbers |= ends
    if len(longer):
        ninth, tenth = (data[firsts[longer] + place].astype(np.uint64) for place in (8, 9))
        tenth[ninth < ONE_BYTE] = 0  # the next number's
        numbers[longer] |= (ninth & word(0x7F)) << word(56) | (tenth & word(1)) << word(63)
    return numbers.view(np.dtype(f"i{size}"))


def _joined(data: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The bytes of all ranges, one after the other."""
    total = int(sizes.sum())
    if total > _FEW_BYTES * len(sizes):
        return np.concatenate(
            [data[at:to] for at, to in zip(begins.tolist(), (begins + sizes).tolist(), strict=True)]
        )
    return data.take(np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(total))
