"""Rows of a piece of csv, split by pyarrow where Python's strict csv provably finds the same ones.

pyarrow repairs what Python rejects. So a row is left to `rows` unless its quotes are only around
cells, and doubled inside: then the quotes before a byte tell whether it is inside."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv

from pipeline.raw.block import Block
from pipeline.raw.rows import Table, cell_count_error

_PARTS = 64  # of a text; reading rows of less than one would take longer than `rows` does
_BREAK, _RETURN, _QUOTE = b'\n\r"'


def csv_block(
    table: Table, text: bytes, names: Sequence[str], *, last: bool
) -> tuple[Block, int, int]:
    """The rows before the first one that is incomplete or that only `rows` can tell, and how many
    bytes and lines these are. None if they are a small part of the text, which begins with a row.
    last: whether the file ends there."""
    delimiter = table.delimiter
    if not delimiter.isascii() or delimiter in '"\r\n\0' or {*names} & {*table.of_folders}:
        return Block.of([]), 0, 0
    # a break in front: each line begins after one, and pyarrow sees no byte order mark
    padded = b"\n" + text + b"\n" * last
    data = np.frombuffer(padded, np.uint8)
    breaks = np.flatnonzero(data == _BREAK)
    quotes = np.flatnonzero(data == _QUOTE) if table.format.quoted else breaks[:0]
    plain = breaks[breaks < _first_odd(data, quotes, ord(delimiter))]
    edges = np.flatnonzero(np.searchsorted(quotes, plain) % 2 == 0)
    used_bytes = min(int(breaks[edges[-1]]), len(text))
    if used_bytes < len(text) // _PARTS:
        return Block.of([]), 0, 0
    used = padded[: breaks[edges[-1]] + 1]
    try:
        utf8 = used if used.isascii() else used.decode(table.format.encoding).encode()
    except UnicodeDecodeError as e:
        return csv_block(table, text[: e.start - 1], names, last=False)
    first = data.take(breaks[edges[:-1]] + 1)
    is_row = (first != _BREAK) & (first != _RETURN)
    line, lines = edges[:-1][is_row], np.diff(edges)[is_row]
    cells = _cells(utf8, names, len(line), table)
    if not cells:
        return Block.of([]), 0, 0
    return Block(line, breaks[line], lines, *cells), used_bytes, int(edges[-1])


def num_plain_bytes(table: Table, text: bytes) -> int:
    """How many bytes of a text that begins with a row are before the first quote or return that is
    not plain."""
    data = np.frombuffer(b"\n" + text, np.uint8)
    return _first_odd(data, np.flatnonzero(data == _QUOTE), ord(table.delimiter)) - 1


def _first_odd(data: np.ndarray, quotes: np.ndarray, delimiter: int) -> int:
    """The place of the first quote or return that is not plain; len(data) if all are."""
    returns = np.flatnonzero(data == _RETURN)
    lone = returns[data.take(returns + 1, mode="clip") != _BREAK]
    outside = quotes - 1  # of cells: before their first quotes
    outside[1::2] += 2  # and after their last ones
    is_edge = np.isin(data.take(outside, mode="clip"), [_BREAK, _RETURN, _QUOTE, delimiter])
    return int(np.concatenate([lone, quotes[~is_edge]]).min(initial=len(data)))


def _cells(
    utf8: bytes, names: Sequence[str], num_rows: int, table: Table
) -> tuple[dict[int, str], dict[str, Any]] | None:
    """The errors of rows with another number of cells, and the columns; None if pyarrow sees
    another number of rows."""
    errors = dict[int, str]()

    def skip(row: csv.InvalidRow) -> str:
        errors[row.number - 1] = cell_count_error(row.actual_columns, len(names))
        return "skip"

    cells = csv.read_csv(
        pyarrow.BufferReader(utf8),
        csv.ReadOptions(use_threads=False, block_size=len(utf8) + 1, column_names=names),
        csv.ParseOptions(
            delimiter=table.delimiter,
            quote_char=table.format.quoted and '"',
            newlines_in_values=True,
            invalid_row_handler=skip,
        ),
        csv.ConvertOptions(check_utf8=False, column_types=dict.fromkeys(names, pyarrow.string())),
    )
    if cells.num_rows + len(errors) != num_rows:  # older ones leave out a line ""
        return None
    if errors:
        is_good = np.ones(num_rows, bool)
        is_good[[*errors]] = False
        places = pyarrow.array(np.cumsum(is_good) - 1, pyarrow.int64(), mask=~is_good)
        cells = cells.take(places)
    columns = {name: cells.column(name).chunk(0) for name in names}
    return errors, columns | {name: [cell] * num_rows for name, cell in table.of_folders.items()}
