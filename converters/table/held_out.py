"""What decides which split a row of a table is in, and its class."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from converters.raw.splits import HeldOut
from converters.table.columns import Column
from pipeline.raw.cells import cell_of, text_cell

SPLIT_BY = (
    "which rows are in one split: content (equal rows; with --image-column, equal images, which it "
    "reads once more for each split), name (the key: each row alone), a column, in which those "
    r"without a value are alone, or a pattern of the key, such as '(patient\d+)', whose "
    "parentheses match what they have in common; folder of --image-column (default: name with a "
    "key or path, else content)"
)


def group_of(held_out: HeldOut, cells: Mapping[str, Any], name: str, content: str) -> str:
    """What decides the split of a row: its content, a cell or its name; its name if it has no such
    content or cell."""
    with contextlib.suppress(ValueError):
        if held_out.column:
            return text_cell(held_out.column, cell_of(cells, held_out.column))
    return content or held_out.group_of(name)


def class_of(columns: Iterable[Column], cells: Mapping[str, Any]) -> str:
    """The class of a row, by which splits are stratified; "" if it has none."""
    with contextlib.suppress(ValueError):
        for column in columns:
            if column.kind == "category" and column.required and not column.separator:
                return text_cell(column.name, cell_of(cells, column.name))
    return ""
