"""What stands in the cells of one row of a table: names of classes, and numbers.

targets makes features of them, table_layouts lists of classes."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Cells", "class_cells", "number_cell"]

Cells = Mapping[str, Any]


def class_cells(cells: Cells, column: str, separator: str | None) -> Sequence[str]:
    """The names of classes in a row; with a separator (or a list) any number of them, without one exactly one.

    Raises ValueError for what is no name."""
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
    """The finite number in a row, as it is once it is float32. Raises ValueError for anything else."""
    cell = _cell(cells, column)
    # Python's own float() takes 1_000, too, which is a slip in a table.
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
    """Without blanks around it, as in a label file; JSON's integers are names, too."""
    name = str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else cell
    name = name.strip() if isinstance(name, str) else name
    if not isinstance(name, str) or name.splitlines() != [name]:
        raise ValueError(f"{column!r} is {cell!r:.60}; a label is a text of one line, or an integer")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{column!r} is {cell!r:.60}, which is not Unicode text") from None
    return name


def _cell(cells: Cells, column: str) -> Any:
    if column not in cells:
        raise ValueError(f"no {column!r} in it")
    return cells[column]
