"""Rows of a piece of csv with NumPy, where Python's strict csv module provably finds the same ones.

A cell is in quotes only from its first byte to its last one, and quotes inside are doubled: then
the quotes before a byte tell whether it is inside. Any other piece is left to `rows`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow

_PAD = 1  # bytes around the text, so that each has others beside it
_BREAK, _RETURN, _QUOTE = b'\n\r"'


class CsvRows(NamedTuple):
    """Rows except empty lines. columns: the texts of each, which are any where a row has another
    number of cells.

    counts: cells of each row. line, offset, size, lines: int64 [rows], as of TableRow; counted from
    the beginning, lines from 0. used_bytes, used_lines: of the piece; a row begins there."""

    columns: Sequence[pyarrow.StringArray]
    counts: np.ndarray
    line: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    lines: np.ndarray
    used_bytes: int
    used_lines: int


def tokenise(
    text: bytes, columns: int, delimiter: str, *, encoding: str, quoted: bool, last: bool
) -> CsvRows | None:
    """The rows of whole lines, of which the first begins a row; None if only `rows` can tell. last:
    whether the file ends there. delimiter: of ASCII. columns: of the header."""
    utf8 = as_utf8(text, encoding)
    if utf8 is None or b"\0" in utf8:
        return None
    if b"\r" in utf8 and utf8.count(b"\r") != utf8.count(b"\r\n"):
        return None
    pad = bytes(_PAD)
    end = b"" if not utf8 or utf8.endswith(b"\n") else b"\n"
    data = np.frombuffer(b"".join([pad, utf8, end, pad]), np.uint8)
    breaks = data == _BREAK
    marks = breaks | (data == ord(delimiter))
    quotes = np.zeros(0, np.int32)
    if quoted and b'"' in utf8:
        quotes = np.flatnonzero(data == _QUOTE).astype(np.int32)
        if not _is_strict(data, quotes, ord(delimiter), last):
            return None
        marks &= np.bitwise_xor.accumulate((data == _QUOTE).view(np.uint8)) == 0
    places = np.flatnonzero(marks).astype(np.int32)
    if len(quotes):
        line_ends = np.flatnonzero(breaks).astype(np.int32)
    else:
        line_ends = places[data.take(places) == _BREAK]
    line_starts = line_ends - (_PAD - 1)
    if utf8 != text:
        line_starts = np.flatnonzero(np.frombuffer(text, np.uint8) == _BREAK) + 1
    line_starts = np.minimum(np.concatenate([[0], line_starts, [len(text)]]), len(text))
    return _rows(data, quotes, places, line_ends, line_starts, columns)


def as_utf8(text: bytes, encoding: str) -> bytes | None:
    """The text in UTF-8; None if it is not of the encoding."""
    if text.isascii():
        return text
    try:
        return text.decode(encoding).encode()
    except UnicodeError:
        return None


def _is_strict(data: np.ndarray, quotes: np.ndarray, delimiter: int, last: bool) -> bool:
    """Whether quotes are only around cells, and doubled inside."""
    if last and len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    before, after = data.take(opening - 1), data.take(closing + 1)
    begins = (before == delimiter) | (before == _BREAK) | (opening == _PAD)
    ends = (after == delimiter) | (after == _BREAK) | (after == _RETURN)
    doubled = _doubled(quotes)
    begins[1:] |= doubled[: len(begins) - 1]
    ends[: len(doubled)] |= doubled[: len(ends)]
    return bool(begins.all() and ends.all())


def _doubled(quotes: np.ndarray) -> np.ndarray:
    """Whether another quote follows the first closing one, the second, and so on."""
    closing, opening = quotes[1::2], quotes[2::2]
    return opening == closing[: len(opening)] + 1


def _rows(
    data: np.ndarray,
    quotes: np.ndarray,
    places: np.ndarray,
    line_ends: np.ndarray,
    line_starts: np.ndarray,
    columns: int,
) -> CsvRows:
    """places: of delimiters and line breaks outside quotes. line_ends: of all line breaks.
    line_starts: in the file, and where the last line ends."""
    stops = np.flatnonzero(data.take(places) == _BREAK)
    stop = places[stops]
    start = np.append(np.int32(_PAD), stop + np.int32(1))
    used = int(start[-1])
    start = start[:-1]
    counts = np.diff(stops, prepend=-1)
    is_row = (stop > start + 1) | ((stop > start) & (data.take(start) != _RETURN))
    is_good = is_row & (counts == columns)
    end = places[: counts.sum()][np.repeat(is_good, counts)].reshape(-1, columns)
    begin = np.empty_like(end)
    begin[:, 1:] = end[:, :-1] + 1
    begin[:, 0] = start[is_good]
    end[:, -1] -= data.take(end[:, -1] - 1) == _RETURN
    doubled = np.zeros(0, np.int32)
    if len(quotes):
        is_quoted = (end > begin) & (data.take(begin) == _QUOTE)
        begin += is_quoted
        end -= is_quoted
        twice = _doubled(quotes)
        doubled = quotes[1::2][: len(twice)][twice]
    texts = _texts(data, begin.reshape(-1), end.reshape(-1), doubled, columns)
    good = np.maximum(np.cumsum(is_good[is_row]) - 1, 0) * columns
    cells = [texts.take(pyarrow.array(good + column)) for column in range(columns)]
    line = np.searchsorted(line_ends, start[is_row])
    lines = np.searchsorted(line_ends, stop[is_row]) + 1 - line
    offset = line_starts[line]
    size = line_starts[line + lines] - offset
    used_lines = int(np.searchsorted(line_ends, used))
    used_bytes = int(line_starts[used_lines])
    places_in_file = line, offset, size, lines
    return CsvRows(cells, counts[is_row], *places_in_file, used_bytes, used_lines)


def _texts(
    data: np.ndarray, begin: np.ndarray, end: np.ndarray, doubled: np.ndarray, columns: int
) -> pyarrow.StringArray:
    """The cells, and an empty one for each column. doubled: quotes to leave out."""
    sizes = np.append(end - begin, np.zeros(columns, np.int32))
    gaps = np.append(begin, len(data)) - np.append(0, end)
    pieces = np.stack([gaps[:-1], end - begin], axis=1).reshape(-1)
    kept = np.repeat(np.arange(len(pieces) + 1) % 2 > 0, np.append(pieces, gaps[-1]))
    if len(doubled) and len(begin):
        kept[doubled] = False
        cells = np.searchsorted(begin, doubled, side="right") - 1
        of_rows = (cells >= 0) & (doubled < end[cells])  # not of one with other numbers of cells
        sizes -= np.bincount(cells[of_rows], minlength=len(sizes))
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    buffers = map(pyarrow.py_buffer, (offsets, data[kept]))
    return pyarrow.StringArray.from_buffers(len(offsets) - 1, *buffers)
