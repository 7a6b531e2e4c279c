"""Checked cells of one row of a table: texts, class names and numbers.

`targets` makes features from them, `layouts` lists of classes. Error texts are part of plan digests."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

Cells = Mapping[str, Any]


def class_cells(cells: Cells, column: str, separator: str | None) -> Sequence[str]:
    """The class names in a row: exactly one without a separator, else any number, in a list or separated.

    Raises ValueError if one is not a name."""
    cell = _cell(cells, column)
    if separator is None:
        return [_class_name(column, cell)]
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return []
    if not isinstance(cell, list):
        _class_name(column, cell)
        cell = str(cell).split(separator)
    names = [_class_name(column, item) for item in cell]
    if len(set(names)) < len(names):
        raise ValueError(f"{column!r} has a label twice: {_cell(cells, column)!r}")
    return names


def number_cell(cells: Cells, column: str) -> float:
    """The finite number in a row, rounded to float32. Raises ValueError for anything else."""
    cell = _cell(cells, column)
    # Python's float() also accepts 1_000, which is a slip in a table.
    text = isinstance(cell, str) and "_" not in cell
    try:
        number = (
            struct.unpack("<f", struct.pack("<f", float(cell)))[0] if text or type(cell) in (int, float) else math.nan
        )
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be a finite number within float32")
    return number


def _class_name(column: str, cell: Any) -> str:
    """Stripped, as in a label file. JSON's integers are names too."""
    name = _text(cell).strip()
    if name.splitlines() != [name]:
        raise ValueError(f"{column!r} is {cell!r:.60}; a label is a text of one line, or an integer")
    _check_unicode(column, cell, name)
    return name


def text_cell(cells: Cells, column: str) -> str:
    """The text, or JSON integer, in a row. Raises ValueError for anything else."""
    cell = _cell(cells, column)
    text = _text(cell)
    if not text or "\0" in text:
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be text, without zero bytes and not empty")
    _check_unicode(column, cell, text)
    return text


def document_cell(cells: Cells, column: str) -> bytes:
    """The text in a row, which may be empty, as UTF-8. Raises ValueError for anything else."""
    cell = _cell(cells, column)
    if not isinstance(cell, str):
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be text")
    _check_unicode(column, cell, cell)
    return cell.encode()


def _text(cell: Any) -> str:
    """ "" unless it is text or an integer."""
    return str(cell) if isinstance(cell, int | str) and not isinstance(cell, bool) else ""


def _check_unicode(column: str, cell: Any, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{column!r} is {cell!r:.60}, which is not Unicode text") from None


def _cell(cells: Cells, column: str) -> Any:
    if column not in cells:
        raise ValueError(f"no {column!r} in it")
    return cells[column]
