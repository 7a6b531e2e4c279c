"""Checked cells of a table: texts, class names and numbers. `columns` makes features from them.

Each function takes the name of the column for its ValueError. Error texts are part of plan digests."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.shards.example import FLOAT32_END


def cell_of(cells: Mapping[str, Any], column: str) -> Any:
    """The cell of a row. Raises ValueError if the row has none."""
    if column not in cells:
        raise ValueError(f"no {column!r} in it")
    return cells[column]


def class_cells(column: str, cell: Any, separator: str | None) -> Sequence[str]:
    """The class names in a cell: exactly one without a separator, else any number, in a list or separated.

    Raises ValueError if one is not a name."""
    if separator is None:
        return [_class_name(column, cell)]
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return []
    if isinstance(cell, list):
        items = cell
    else:
        _class_name(column, cell)
        items = str(cell).split(separator)
    names = [_class_name(column, item) for item in items]
    if len(set(names)) < len(names):
        raise ValueError(f"{column!r} has a label twice: {cell!r}")
    return names


def number_cell(column: str, cell: Any) -> float:
    """The finite number, within float32, in a cell. Raises ValueError for anything else."""
    # Python's float() also accepts 1_000, which is a slip in a table.
    text = isinstance(cell, str) and "_" not in cell
    try:
        number = float(cell) if text or type(cell) in (int, float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) < FLOAT32_END:
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be a finite number within float32")
    return number


def _class_name(column: str, cell: Any) -> str:
    """Stripped, as in a label file. JSON's integers are names too."""
    name = _text(cell).strip()
    if name.splitlines() != [name]:
        raise ValueError(f"{column!r} is {cell!r:.60}; a label is a text of one line, or an integer")
    _check_unicode(column, cell, name)
    return name


def text_cell(column: str, cell: Any) -> str:
    """The text, or JSON integer, in a cell. Raises ValueError for anything else."""
    text = _text(cell)
    if not text or "\0" in text:
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be text, without zero bytes and not empty")
    _check_unicode(column, cell, text)
    return text


def document_cell(column: str, cell: Any) -> bytes:
    """The text in a cell, which may be empty, as UTF-8. Raises ValueError for anything else."""
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
