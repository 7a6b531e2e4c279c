"""Cells of text as places in shared bytes, and the plain numbers among them, many at a time.

What is not plain is OTHER: it is left to `cells`, whose rules and error texts these functions never
restate."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PAD = 8
"""Bytes before the first cell and after the last one: numbers are read in words."""
EMPTY, INTEGER, FLOAT, OTHER = range(4)
_MOST_WORDS = 3  # of a number, without sign and exponent
_MOST_INTEGER = 18  # digits: within int64
_EXACT_POWER = 22  # of ten, in float64
_HIGHEST = 10 ** (_MOST_INTEGER - 16)  # in the third word
_E_TAIL = 4  # bytes, as in e-05

_FULL = (1 << 64) - 1
# a word's last bytes, by their number
_LAST = np.array([_FULL << 64 - 8 * n & _FULL for n in range(9)], np.uint64)
_POWERS = 10.0 ** np.arange(_EXACT_POWER + 1)
_WHOLE_POWERS = 10 ** np.arange(_MOST_INTEGER + 1)


class TextCells(NamedTuple):
    """A column of texts: data[begin[i]:end[i]] is cell i in UTF-8. data: with PAD bytes around all
    cells. nulls: bool [n], which cells have no text; None if all have."""

    data: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    nulls: np.ndarray | None = None

    def texts(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """The texts of these rows, whatever they are for nulls."""
        begins, ends = self.begin[rows], self.end[rows]
        if not len(begins):
            return []
        first = int(begins.min())
        data = self.data[first : ends.max()].tobytes()
        pairs = zip((begins - first).tolist(), (ends - first).tolist(), strict=True)
        return [data[begin:end].decode() for begin, end in pairs]


class ParsedNumbers(NamedTuple):
    """Which cells are plain numbers. kinds: uint8 [n]. integers: int64 [n], of the kind INTEGER.
    floats: float64 [n], of INTEGER and FLOAT: they have the sign and the float32 that float() of
    the text has, and are equal to it up to 15 digits."""

    kinds: np.ndarray
    integers: np.ndarray
    floats: np.ndarray


def parse_numbers(cells: TextCells, decimal: str = ".") -> ParsedNumbers:
    """INTEGER is -?(0|[1-9]\\d{0,17}); FLOAT is -?\\d+(\\.\\d*)?([eE][+-]\\d\\d)? with a mark or an
    exponent, and up to 18 digits from the first that is not 0.

    decimal: the mark. OTHER may be a number too: a longer one, or one whose float32 depends on how
    the digits beyond float64 are rounded."""
    data, begin, end = cells.data, cells.begin, cells.end
    minus = data.take(begin) == ord("-")
    first = begin + minus
    last, power = _exponents(data, first, end)
    size = last - first
    mark = first + np.minimum(_find(data, first, size, decimal), size)
    after = np.minimum(mark + 1, last)
    whole, is_whole = _digits(data, first, mark)
    fraction, is_fraction = _digits(data, after, last)
    places = last - after
    known = is_whole & is_fraction & (mark > first) & (size <= 8 * _MOST_WORDS)
    known &= whole * _POWERS.take(places, mode="clip") + fraction <= 10.0**_MOST_INTEGER
    digits = whole * _WHOLE_POWERS.take(places, mode="clip") + fraction
    floats, is_sure = _scaled(digits, power - places)
    has_mark = mark < last
    is_float = known & is_sure & (has_mark | (last < end))
    is_integer = known & ~has_mark & (last == end)
    is_integer &= (data.take(first) != ord("0")) | (size == 1)
    kinds = np.full(len(begin), OTHER, np.uint8)
    for kind, has_kind in ((EMPTY, begin == end), (INTEGER, is_integer), (FLOAT, is_float)):
        kinds[has_kind] = kind
    if cells.nulls is not None:
        kinds[cells.nulls] = OTHER
    integers = np.where(minus, -digits, digits)
    return ParsedNumbers(kinds, integers, np.where(minus, -floats, floats))


def _scaled(digits: np.ndarray, power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """digits * 10**power, and whether float32 of it is right.

    Up to 53 bits, it is the nearest float64. Otherwise it is within 2 steps of that, which is the
    same in float32 unless the middle between two float32 is that near."""
    factor = _POWERS.take(np.abs(power), mode="clip")
    exact = digits.astype(np.float64)
    floats = np.where(power < 0, exact / factor, exact * factor)
    beyond_float32 = floats.view(np.int64) & ((1 << 29) - 1)
    near_middle = np.abs(beyond_float32 - (1 << 28)) <= 8
    return floats, (np.abs(power) <= _EXACT_POWER) & ~((digits > 2**53) & near_middle)


def _exponents(data: np.ndarray, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
    """Where the exponent begins, or the end, and the exponent."""
    at = np.maximum(end - _E_TAIL, first)
    rows = np.flatnonzero(data.take(at) | 32 == ord("e"))
    last, power = end, np.zeros(len(end), np.int64)
    if len(rows):
        sign, ten, one = (data.take(at[rows] + n).astype(np.int64) for n in (1, 2, 3))
        ten, one = ten - ord("0"), one - ord("0")
        fits = (end[rows] - at[rows] == _E_TAIL) & ((sign == ord("+")) | (sign == ord("-")))
        fits &= (ten >= 0) & (ten < 10) & (one >= 0) & (one < 10)
        last = end.copy()
        last[rows[fits]] -= _E_TAIL
        power[rows[fits]] = np.where(sign == ord("-"), -1, 1)[fits] * (10 * ten + one)[fits]
    return last, power


def _words(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The eight bytes from each place on: uint64, of which the first byte is the lowest."""
    return np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))[at]


def _num_words(size: np.ndarray) -> int:
    return min(_MOST_WORDS, -(-int(size.max(initial=0)) // 8))


def _find(data: np.ndarray, begin: np.ndarray, size: np.ndarray, mark: str) -> np.ndarray:
    """How far the first such byte is from each place, or a number beyond the size."""
    out = np.full(len(begin), 1 << 30)
    for n in reversed(range(_num_words(size))):
        differs = _words(data, np.minimum(begin + 8 * n, len(data) - 8)) ^ _all(ord(mark))
        # of the bytes that are 0, this sets the highest bit of the first
        zero = (differs - _all(1)) & ~differs & _all(0x80)
        at = np.bitwise_count((zero & (~zero + np.uint64(1))) - np.uint64(1)) >> 3
        out = np.where(at < 8, at + 8 * n, out)
    return out


def _digits(data: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 of each place's digits, and whether there are only digits, of which 18 are not 0 at the
    left. No digits are 0."""
    size = end - begin
    value = np.zeros(len(begin), np.int64)
    is_known = size <= 8 * _MOST_WORDS
    for n in range(_num_words(size)):
        keep = _LAST.take(size - 8 * n, mode="clip")
        word = _words(data, np.maximum(end - 8 * (n + 1), 0))
        word = (word & keep) | (_all(ord("0")) & ~keep)
        tens = word & _all(0xF0)
        is_known &= (tens | (((word + _all(6)) & _all(0xF0)) >> 4)) == _all(0x33)
        # pairs of digits, of pairs, of these: each product has the sum in its higher half
        word = (word & _all(0x0F)) * np.uint64(10 << 8 | 1) >> 8
        word = (word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(100 << 16 | 1) >> 16
        word = (word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(10_000 << 32 | 1) >> 32
        if n == _MOST_WORDS - 1:
            is_known &= word < _HIGHEST
        value += word.astype(np.int64) * 10 ** (8 * n)
    return value, is_known


def _all(byte: int) -> np.uint64:
    """A word of eight such bytes."""
    return np.uint64(byte * 0x0101010101010101)
