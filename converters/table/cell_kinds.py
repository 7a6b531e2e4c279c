"""The kinds of cells: what a column may hold, judged one by one, or many at a time where they are
plain."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute, types

from converters.images.image_archives import IMAGE_SUFFIXES
from pipeline.raw.cells import SPELLINGS, is_int64
from pipeline.raw.text_cells import FLOAT, OTHER, plain_numbers, text_buffers
from pipeline.shards.schema import TableFormat

TEXT = OTHER + 1  # among plain kinds
_NO_SUFFIX = f"[^.]{{{max(map(len, IMAGE_SUFFIXES)) - 1}}}"
_SURELY_TEXT = (
    r"(?s)^([!-~].*?)??[!-*/:-DF-df-~]",  # has a character that is in no number
    _NO_SUFFIX + r"[!-\-/-~]$",
)
NUMBER = re.compile(r"([+-]?)(\d+|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?")
CODE, BIG = "codes of digits", "digits beyond int64"
BOOL, TRUTH = "true and false", "their spellings"
GUESSED = {BOOL: "int64", TRUTH: "text"}


def kind_of(cell: Any, format: TableFormat, *, text: bool) -> str:
    """One of KINDS, "" for an empty cell, or what no feature can hold."""
    number = format.number(cell)
    if number is None:
        return ""
    if isinstance(cell, str):
        if text and (match := NUMBER.fullmatch(number)):
            return _kind_of_number(*match.groups())
        cell = cell.strip()
        if cell in SPELLINGS and cell.isalpha():
            return TRUTH
        return "image" if cell.lower().endswith(IMAGE_SUFFIXES) else "text"
    if isinstance(cell, bool):
        return BOOL
    if isinstance(cell, int):
        return "int64" if is_int64(cell) else "integers beyond int64"
    if isinstance(cell, dict):
        return "image" if cell.keys() <= {"bytes", "path"} else "nested columns"
    return {float: "float32", Decimal: "float32", bytes: "bytes"}.get(type(cell), "nested lists")


def _kind_of_number(sign: str, whole: str, fraction: str | None, exponent: str | None) -> str:
    """Of digits that a number would not keep, as in 00501, +39 or 20 of them, a code."""
    if fraction or exponent or not whole.isascii():
        return "float32"
    if sign == "+" or (whole[0] == "0" and len(whole) > 1):
        return CODE
    return "int64" if len(whole) <= 19 and is_int64(int(sign + whole)) else BIG


def plain_kinds(cells: Any, format: TableFormat) -> np.ndarray:
    """uint8 [n]: the kinds of plain_numbers, and TEXT for texts that are sure to be neither
    numbers nor images, nor to mean a missing value."""
    if types.is_primitive(cells.type):
        return np.where(cells.is_null(nan_is_null=True), OTHER, FLOAT)
    kinds, _ = plain_numbers(cells, format.decimal)
    rows = np.flatnonzero(kinds == OTHER)
    if not len(rows):
        return kinds
    others = cells.filter(pyarrow.array(kinds == OTHER))
    longest = max(len(text.encode()) for text in (*SPELLINGS, *format.missing_values))
    is_text = np.diff(text_buffers(others)[1]) > longest
    for pattern in map(compute.MatchSubstringOptions, _SURELY_TEXT):
        matches = compute.call_function("match_substring_regex", [others], pattern)
        is_text &= np.asarray(matches.fill_null(False))
    kinds[rows[is_text]] = TEXT
    return kinds
