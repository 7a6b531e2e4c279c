"""Rows of tables in blocks: the rows of `Table.rows`, thousands at a time, with columns in place of
a dictionary for each.

Only what is proven to be plain is read so. Everything else is read by `rows`, whose rows are then a
block: a piece of csv with unusual quotes, a line that is not plain JSON, all rows after one that is
too long to be in memory with others."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, BinaryIO

import msgspec
import numpy as np

from pipeline.raw import rows as one_by_one
from pipeline.raw.arrow_blocks import arrow_blocks
from pipeline.raw.block import Block
from pipeline.raw.csv_block import as_utf8, tokenise
from pipeline.raw.pieces import WHOLE, Piece
from pipeline.raw.rows import Table, TableRow, cell_count_error, is_json, with_folders
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import uncompressed

PIECE_BYTES = 1 << 19  # of a table of few columns; its arrays take about ten times as much
_FEW_BYTES = 1 << 13  # of text with unusual quotes that is not tried in parts
_NARROW = 10  # columns; with more, pieces are larger, so that they have thousands of rows, too
_WIDEST = 8
_ROWS = 4096  # of a block that was read row by row
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
        yield from filter(len, arrow_blocks(table, columns, units or {}, piece))
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


def _text_blocks(
    table: Table, file: BinaryIO, names: Sequence[str], offset: int, line: int
) -> Iterator[Block]:
    """offset, line: where rows begin."""
    rest = b""
    usual_bytes = num_bytes = PIECE_BYTES * min(1 + len(names) // _NARROW, _WIDEST)
    is_plain = is_json(table.uri) or _is_plain(table, names)
    while True:
        more = file.read(num_bytes)
        piece = rest + more
        if not is_plain or len(piece) > one_by_one.MAX_ROW_BYTES:
            yield from _one_by_one(table, table.rows_from(file, names, offset, line))
            return
        text = piece if not more else piece[: piece.rfind(b"\n") + 1]
        read = _json_block if is_json(table.uri) else _csv_block
        block, used_bytes, used_lines = read(table, text, names, last=not more)
        block.line += line + 1
        block.offset += offset
        yield block
        rest = piece[used_bytes:]
        if not more and not rest:
            return
        num_bytes = max(usual_bytes - len(rest), 1) if used_bytes else len(piece)
        offset += used_bytes
        line += used_lines


def _is_plain(table: Table, names: Sequence[str]) -> bool:
    delimiter = table.delimiter
    return delimiter.isascii() and delimiter not in '"\r\n\0' and not {*names} & {*table.of_folders}


def _one_by_one(table: Table, rows: Iterable[TableRow]) -> Iterator[Block]:
    group = list[TableRow]()
    num_bytes = 0
    for row in rows:
        group.append(row)
        num_bytes += row.size
        if len(group) == _ROWS or num_bytes > PIECE_BYTES:
            yield _block_of(table, group)
            group = []
            num_bytes = 0
    yield _block_of(table, group)


def _block_of(table: Table, rows: Iterable[TableRow]) -> Block:
    of_folders = table.of_folders
    return Block.of([with_folders(of_folders, row) for row in rows] if of_folders else rows)


def _csv_block(
    table: Table, text: bytes, names: Sequence[str], *, last: bool
) -> tuple[Block, int, int]:
    """The rows that end in whole lines, and how many bytes and lines these are."""
    format = table.format
    rows = tokenise(
        text,
        len(names),
        table.delimiter,
        encoding=format.encoding,
        quoted=format.quoted,
        last=last,
    )
    if rows is None:
        cut = text.rfind(b"\n", 0, len(text) // 4) + 1
        if cut > _FEW_BYTES:
            found = _csv_block(table, text[:cut], names, last=False)
            if found[1]:
                return found
        return _unusual_block(table, text, names, last=last)
    bad = np.flatnonzero(rows.counts != len(names)).tolist()
    errors = {i: cell_count_error(int(rows.counts[i]), len(names)) for i in bad}
    columns = dict(zip(names, rows.columns, strict=True))
    places = rows.line, rows.offset, rows.size, rows.lines
    block = Block(*places, errors, columns, table.of_folders)
    return block, rows.used_bytes, rows.used_lines


class _Piece(io.BytesIO):
    """A piece of a file. is_over: whether a line after its last one was asked for."""

    is_over = False

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.is_over |= not line
        return line


def _unusual_block(
    table: Table, text: bytes, names: Sequence[str], *, last: bool
) -> tuple[Block, int, int]:
    """The rows before the first one that may continue after the text."""
    piece = _Piece(text)
    group = list[TableRow]()
    used = len(text), text.count(b"\n")
    for row in table.rows_from(piece, names, 0, 0):
        if piece.is_over and not last:
            used = row.offset, row.line - 1
            break
        group.append(row)
    block = _block_of(table, group)
    block.line -= 1
    return block, *used


def _json_block(
    table: Table, text: bytes, names: Sequence[str], *, last: bool
) -> tuple[Block, int, int]:
    del last  # each line is a row
    lines = [*io.BytesIO(text)]
    utf8 = as_utf8(text, table.format.encoding)
    plain: list[Any] = [*map(_plain_object, io.BytesIO(utf8))] if utf8 else [None] * len(lines)
    sizes = np.fromiter(map(len, lines), np.int64, len(lines))
    offsets = np.cumsum(sizes) - sizes
    used = len(text), text.count(b"\n")
    if all(plain) and not table.of_folders:
        numbers, ones = np.arange(len(lines)), np.ones(len(lines), np.int64)
        return Block(numbers, offsets, sizes, ones, {}, rows=plain), *used
    rows = list[TableRow]()
    for line, (cells, offset) in enumerate(zip(plain, offsets.tolist(), strict=True)):
        if cells:
            rows.append(TableRow(line, offset, len(lines[line]), cells))
        else:
            found = table.rows_from(io.BytesIO(lines[line]), names, 0, 0)
            rows += (row._replace(line=line, offset=offset) for row in found)
    return _block_of(table, rows), *used


def _plain_object(line: bytes) -> Mapping[str, Any] | None:
    """The object in a line if it has columns, no key twice, and no others inside.

    Each key has its own `":`, so that only as many of these as keys prove that."""
    try:
        cells = _decode(line)
    except _NOT_PLAIN:
        return None
    is_plain = type(cells) is dict and line.count(b'":') == len(cells)
    return cells if is_plain and not _SPACED_KEY.search(line) else None
