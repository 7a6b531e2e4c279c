"""Rows of tables in blocks: the rows of `Table.rows`, thousands at a time, with columns in place of
a dictionary for each.

Only what is proven to be plain is read so. Everything else is read by `rows`, whose rows are then a
block: some rows of csv from an unusual quote on, a line that is not plain JSON, all rows after one
that is too long to be in memory with others."""

import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, BinaryIO

import msgspec
import numpy as np

from pipeline.raw import rows as one_by_one
from pipeline.raw.arrow_tables import arrow_columns
from pipeline.raw.block import Block
from pipeline.raw.csv_block import csv_block
from pipeline.raw.pieces import WHOLE, Piece
from pipeline.raw.rows import Table, TableRow, is_json
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import uncompressed

PIECE_BYTES = 1 << 19  # of a table of few columns; its arrays take about ten times as much
_FEW, _MANY = 64, 4  # at first a 64th of a piece is read row by row, at most a quarter
_NARROW = 10  # columns; with more, pieces are larger, so that they have thousands of rows, too
_WIDEST = 8
_SPACED_KEY = re.compile(rb'"[ \t\r]+:')
_NOT_PLAIN = (msgspec.MsgspecError, ValueError, RecursionError)
_decode = msgspec.json.Decoder().decode


def blocks_of(
    table: Table,
    columns: Set[str] | None = None,
    units: Mapping[str, str] | None = None,
    piece: Piece = WHOLE,
) -> Iterator[Block]:
    """The rows of table.rows(columns, units) in blocks that are not empty. piece: those to read.
    Raises as it does."""
    if table.is_arrow:
        rows = range(piece.line + 1, piece.end)
        yield from filter(len, _arrow_blocks(table, columns, units or {}, rows))
        return
    with uncompressed(open_storage(table.uri), table.uri) as file:
        names, offset, line = table.start_of(file)
        if piece.begin:
            offset, line = piece.begin, piece.line
        file.seek(offset)
        for block in filter(len, _text_blocks(table, file, names, offset, line)):
            rows = int(np.searchsorted(block.offset, piece.end))
            if rows:
                yield block.first(rows)
            if rows < len(block):
                return


def _arrow_blocks(
    table: Table, columns: Set[str] | None, units: Mapping[str, str], rows: range
) -> Iterator[Block]:
    begin = rows.start
    for cells in arrow_columns(table.uri, columns, units, rows):
        numbers = np.arange(begin, begin + len(next(iter(cells.values()), ())))
        begin += len(numbers)
        more = {name: [cell] * len(numbers) for name, cell in table.of_folders.items()}
        yield Block(numbers, numbers, np.ones_like(numbers), {}, cells | more)


def _text_blocks(
    table: Table, file: BinaryIO, names: Sequence[str], offset: int, line: int
) -> Iterator[Block]:
    """offset, line: where rows begin.

    From a row that is not plain on, a small part is read row by row, and twice as much each time
    until rows are plain again."""
    rest = b""
    usual_bytes = num_bytes = PIECE_BYTES * min(1 + len(names) // _NARROW, _WIDEST)
    few_bytes, most_bytes = usual_bytes // _FEW, usual_bytes // _MANY + 1
    slow_bytes = few_bytes
    read = _json_block if is_json(table.uri) else csv_block
    while True:
        more = file.read(num_bytes)
        piece = rest + more
        if len(piece) > one_by_one.MAX_ROW_BYTES:
            rows = table.rows_from(file, names, offset, line)
            groups = itertools.groupby(rows, lambda row: row.offset // most_bytes)
            yield from (Block.of(group) for _, group in groups)
            return
        last = not more
        text = piece if last else piece[: piece.rfind(b"\n") + 1]
        block, used_bytes, used_lines = read(table, text, names, last=last)
        if used_bytes:
            slow_bytes = few_bytes
        elif text:
            found = _unusual_block(table, text, names, slow_bytes, last=last)
            block, used_bytes, used_lines = found
            slow_bytes = min(2 * slow_bytes, most_bytes)
        block.line += line + 1
        block.offset += offset
        yield block
        rest = piece[used_bytes:]
        if last and not rest:
            return
        num_bytes = max(usual_bytes - len(rest), 1) if used_bytes else len(piece)
        offset += used_bytes
        line += used_lines


class _Piece(io.BytesIO):
    """A piece of a file. is_over: whether a line after its last one was asked for."""

    is_over = False

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.is_over |= not line
        return line


def _unusual_block(
    table: Table, text: bytes, names: Sequence[str], num_bytes: int, *, last: bool
) -> tuple[Block, int, int]:
    """The first rows, which end before the first one that may continue after the text."""
    piece = _Piece(text)
    group = list[TableRow]()
    used = len(text), text.count(b"\n")
    for row in table.rows_from(piece, names, 0, 0):
        if piece.is_over and not last:
            used = row.offset, row.line - 1
            break
        group.append(row)
        if row.offset + row.size >= num_bytes:
            used = row.offset + row.size, row.line - 1 + row.lines
            break
    block = Block.of(group)
    block.line -= 1
    return block, *used


def _json_block(
    table: Table, text: bytes, names: Sequence[str], *, last: bool
) -> tuple[Block, int, int]:
    """The rows of complete lines, before the first line that is not in the encoding."""
    try:
        utf8 = text if text.isascii() else text.decode(table.format.encoding).encode()
    except UnicodeDecodeError as e:
        return _json_block(table, text[: text.rfind(b"\n", 0, e.start) + 1], names, last=last)
    lines = [*io.BytesIO(text)]
    lines = [*io.BytesIO(text)]
    cells: list[Any] = [*map(_plain_object, io.BytesIO(utf8))]
    more = table.of_folders
    odd = [i for i, each in enumerate(cells) if not each or (more and more.keys() & each)]
    if more:
        cells = [each and {**each, **more} for each in cells]
    errors = dict[int, str]()
    for i in odd:
        for row in table.rows_from(io.BytesIO(lines[i]), names, 0, 0):  # none if it is empty
            cells[i], errors[i] = row.cells, row.error
    number = np.arange(len(lines))
    size = np.fromiter(map(len, lines), np.int64, len(lines))
    rows = np.setdiff1d(number, [i for i in odd if i not in errors])
    errors = {i: error for i, error in errors.items() if error}
    block = Block(number, np.cumsum(size) - size, np.ones_like(size), errors, rows=cells)
    return block.take(rows), len(text), len(lines)


def _plain_object(line: bytes) -> Mapping[str, Any] | None:
    """The object in a line if it has columns, no key twice, and no others inside.

    Each key has its own `":`, so that only as many of these as keys prove that."""
    try:
        cells = _decode(line)
    except _NOT_PLAIN:
        return None
    is_plain = type(cells) is dict and line.count(b'":') == len(cells)
    return cells if is_plain and not _SPACED_KEY.search(line) else None
