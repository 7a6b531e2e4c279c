"""Pieces of large tables, so that several workers read one file.

A piece of Parquet is some of its row groups. Of text it is a range of bytes, and where the first
row after its beginning is can only be guessed: quotes may have been opened anywhere before. So the
guess is proven afterwards: if reading the pieces ends, one after the other, where the next one
began, the rows are those of the entire file."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.raw.arrow_files import row_groups
from pipeline.raw.csv_block import csv_block, num_plain_bytes
from pipeline.raw.rows import ARROW_SUFFIXES, Table, is_json
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import is_compressed

_LOOKED_AT = (1 << 14, 1 << 18, 1 << 22)  # bytes, to guess where a row begins
_BREAK, _QUOTE = b'\n"'


class Piece(NamedTuple):
    """Some rows of a table: those from `begin` on that begin before `end`, which are bytes of a
    text, and numbers of rows, from 1, of Parquet. line: how many lines or rows are before."""

    begin: int
    end: int
    line: int


WHOLE = Piece(0, sys.maxsize, 0)
"""All rows of a table."""


def pieces_of(table: Table, num_bytes: int, piece_bytes: int) -> Sequence[Piece]:
    """The pieces of a table, one after the other, of about this size. Lines are known, and rows
    begin where they say, in Parquet only. num_bytes: of the file. Raises RawDataError."""
    if num_bytes <= piece_bytes or is_compressed(table.uri):
        return (WHOLE,)
    if not table.is_arrow:
        cuts = [*range(0, num_bytes, piece_bytes), sys.maxsize]
        return [Piece(begin, end, 0) for begin, end in itertools.pairwise(cuts)]
    if not table.uri.lower().endswith(ARROW_SUFFIXES[0]):
        return (WHOLE,)
    return [*_groups(table, num_bytes, piece_bytes)] or (WHOLE,)


def _groups(table: Table, num_bytes: int, piece_bytes: int) -> Iterator[Piece]:
    """Row groups, of about this size together by their shares of rows: sizes that the file states
    need not be true."""
    groups = row_groups(table.uri)
    begin = end = 1
    for rows in groups:
        end += rows
        if (end - begin) * num_bytes >= piece_bytes * sum(groups) and begin < end:
            yield Piece(begin, end, begin - 1)
            begin = end
    if begin < end:
        yield Piece(begin, end, begin - 1)


def guessed_start(table: Table, begin: int) -> int | None:
    """Where the first row at or after a byte of a text seems to begin; None if nothing tells.

    Whether the byte is inside quotes is tried both ways. The one is taken in which quotes are
    around cells for longer, or that makes more rows. Raises RawDataError."""
    with open_storage(table.uri).open(table.uri) as file:
        names, _, _ = table.start_of(file)
        file.seek(begin - 1)
        text = file.read(_LOOKED_AT[-1])
    first = text.find(b"\n") + 1
    for num_bytes in _LOOKED_AT if table.format.quoted and not is_json(table.uri) else ():
        some = text[:num_bytes]
        starts = _starts(some)
        if max(starts) > len(some):  # look further for the other one
            continue
        plain = [num_plain_bytes(table, some[start:]) + start for start in starts]
        rows = [_num_rows(table, some[start:], names) for start in starts]
        if plain[0] != plain[1] or rows[0] != rows[1]:
            return begin - 1 + starts[(plain[1], rows[1]) > (plain[0], rows[0])]
    return begin - 1 + first if first else None


def _starts(text: bytes) -> list[int]:
    """After the first line break that an even number of quotes is before, and an odd number."""
    data = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(data == _BREAK)
    quotes = np.searchsorted(np.flatnonzero(data == _QUOTE), breaks)
    first = ([*breaks[quotes % 2 == odd][:1], len(text)][0] for odd in (0, 1))
    return [int(at) + 1 for at in first]


def _num_rows(table: Table, text: bytes, names: Sequence[str]) -> int:
    """How many rows of csv without an error a text begins with, before any that is not strict."""
    block, _, _ = csv_block(table, text, names, last=False)
    return len(block) - len(block.errors)
