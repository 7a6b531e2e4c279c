"""What decides which split a row of a table is in, and its class."""

import contextlib
from collections.abc import Callable, Iterable

from converters.raw.splits import HeldOut
from converters.table.columns import Column
from pipeline.raw.cells import cell_of, text_cell
from pipeline.raw.rows import TableRow

SPLIT_BY = (
    "which rows are in one split: content (equal rows; with --image-column, equal images, which it "
    "reads once more for each split), name (the key: each row alone), a column, in which those "
    r"without a value are alone, or a pattern of the key, such as '(patient\d+)', whose "
    "parentheses match what they have in common; folder of --image-column (default: name with a "
    "key or path, else content)"
)


def group_of(
    held_out: HeldOut,
    row: TableRow,
    name: str,
    by_content: bool,
    content: Callable[[TableRow], str],
) -> str:
    """What decides the split of a row: a cell, its name or its content; its name if it has no such
    cell or content."""
    with contextlib.suppress(ValueError):
        if by_content:
            return content(row)
        if held_out.column:
            return text_cell(held_out.column, cell_of(row.cells, held_out.column))
    return held_out.group_of(name)


def class_of(columns: Iterable[Column], row: TableRow) -> str:
    """The class of a row, by which splits are stratified; "" if it has none."""
    with contextlib.suppress(ValueError):
        for column in columns:
            if column.kind == "category" and column.required and not column.separator:
                return text_cell(column.name, cell_of(row.cells, column.name))
    return ""
