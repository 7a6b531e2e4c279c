"""The values of a feature for a block of rows: those of Column.value, which is called only for
cells that are not plain, and once for those that are equal."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow
from pyarrow import types

from converters.table.columns import MOST_EXACT, OF_FILES, Column
from pipeline.errors import Reject
from pipeline.raw.block import ABSENT, Block, Cells, objects, taken
from pipeline.raw.text_cells import INTEGER, plain_numbers, text_buffers, where
from pipeline.shards.example import FLOAT32_END
from pipeline.shards.schema import TableFormat

_PACKED = {str: "string", int: "int64", float: "float64", bool: "bool"}
_ALIKE = (*_PACKED, type(None))  # objects that mean the same if their repr is equal
_VALUES = {"bytes": pyarrow.large_binary(), "int64": pyarrow.int64(), "float32": pyarrow.float64()}

FileOf = Callable[[int, Any, str], bytes]
"""What a record stores for a cell of the kind image or file, by its row."""


def values_of(
    column: Column, block: Block, format: TableFormat, errors: dict[int, str], file_of: FileOf
) -> tuple[Any, np.ndarray]:
    """The value of each row, as an array of Arrow: large_binary, int64, float64, or lists of these;
    and int64 [n], Column.num_rounded of each.

    errors: of rows that have no value and are not read. Adds the texts of those of Column.value."""
    if column.parts and column.shape:
        parts = [Column(name, "float32", parts=(name,)) for name in column.parts]
        found = [values_of(part, block, format, errors, file_of) for part in parts]
        values = np.stack([values for values, _ in found], axis=1).ravel()
        rounded = np.sum([rounded for _, rounded in found], axis=0)
        return pyarrow.FixedSizeListArray.from_arrays(values, len(parts)), rounded
    cells = packed(block.cells(column.name))
    kind = _VALUES[column.feature.dtype]
    kind = pyarrow.list_(kind) if column.shape or column.separator else kind
    values, is_plain = _plain(column, cells, format) or (
        pyarrow.nulls(len(block), kind),
        np.zeros(len(block), bool),
    )
    rounded = np.zeros(len(block), np.int64)
    if types.is_float64(kind):
        numbers = np.asarray(values)
        is_large = np.abs(numbers) > MOST_EXACT
        rounded += is_large & (numbers.astype(np.float32) != numbers)
        is_plain &= (rounded > 0) | ~is_large  # texts may have more digits than float64
    is_plain[[*errors]] = True
    rows = np.flatnonzero(~is_plain)
    if not len(rows):
        return values, rounded

    def result(row: int, cell: Any) -> tuple[Any, int, str]:
        cells = _named(column.name, cell)
        try:
            value: Any = column.value(cells, partial(file_of, row), format)
            count = column.num_rounded(value, cells, format) if column.kind == "float32" else 0
            return value[0] if column.parts else value, count, ""
        except (ValueError, Reject) as e:
            return None, 0, str(e)

    firsts = numbers = np.arange(len(rows))
    if column.kind not in OF_FILES:  # whose notes are on each row
        firsts, numbers = different(taken(cells, rows))
    items = objects(cells, rows[firsts])
    results, counts, texts = zip(*map(result, rows[firsts].tolist(), items), strict=True)
    rounded[rows] = np.array(counts)[numbers]
    if any(texts):
        messages = zip(rows.tolist(), np.array(texts, object)[numbers], strict=True)
        errors.update({row: text for row, text in messages if text})
    places = np.arange(len(block))
    places[rows] = len(block) + numbers
    return taken(pyarrow.concat_arrays([values, pyarrow.array(results, kind)]), places), rounded


def _named(name: str, cell: Any) -> Mapping[str, Any]:
    """The cell of a row by its column; nothing if it is ABSENT."""
    return {} if cell is ABSENT else {name: cell}


def different(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """The first place of each different cell, in order, and which of them each cell is."""
    if not isinstance(cells, pyarrow.Array):
        alike = [repr(cell) if type(cell) in _ALIKE else f"#{i}" for i, cell in enumerate(cells)]
        cells = pyarrow.array(alike, "string")
    if types.is_dictionary(cells.type):
        cells = cells.indices
    encoded = cells.dictionary_encode("encode")
    numbers = encoded.indices.to_numpy()
    firsts = np.zeros(len(encoded.dictionary), np.int64)
    firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]  # the last one assigned stays
    return firsts, numbers


def packed(cells: Cells, *, mixed: bool = False) -> Cells:
    """An array of cells that are all texts, or all numbers of one type, or None. mixed: also of
    integers and floats."""
    if isinstance(cells, pyarrow.Array):
        return cells
    kinds = {*map(type, cells)} - {type(None)}
    kind = float if mixed and kinds == {int, float} else kinds.pop() if len(kinds) == 1 else None
    try:
        return pyarrow.array(cells, _PACKED[kind]) if kind in _PACKED else cells
    except (UnicodeEncodeError, OverflowError, pyarrow.ArrowInvalid):
        return cells


def _plain(column: Column, cells: Cells, format: TableFormat) -> tuple[Any, np.ndarray] | None:
    """The values of plain cells, and which are plain. None if none is."""
    if not isinstance(cells, pyarrow.Array):
        cells = packed([None if cell is ABSENT else cell for cell in cells], mixed=True)
    if column.shape or column.separator or not isinstance(cells, pyarrow.Array):
        return None
    is_text = not types.is_primitive(cells.type)
    have_value = np.asarray(cells.is_valid())
    if column.kind in ("text", "bytes"):
        if not is_text:
            return None
        texts = cells.cast("large_binary")
        if column.required and column.kind == "text":  # of which zero bytes are errors, too
            data, places = text_buffers(texts)
            have_value = have_value & (np.diff(places) > 0) & bool(data.all())
        return texts, have_value
    # of a dictionary, each different text is read once
    if not format.keeps_numbers or types.is_dictionary(cells.type):
        return None
    if column.kind == "int64" and not types.is_floating(cells.type):
        if is_text:
            have_value = plain_numbers(cells, format.decimal)[0] == INTEGER
            cells = where(have_value, cells)
        return cells.cast("int64"), have_value
    if column.kind != "float32" or (column.parts and types.is_boolean(cells.type)):
        return None
    floats = _floats(cells, format.decimal if is_text else ".")
    is_float = np.abs(floats) < FLOAT32_END  # which NaN is not
    return pyarrow.array(np.where(is_float, floats, 0)), is_float


def _floats(cells: Any, decimal: str) -> np.ndarray:
    """NaN for what is not plain."""
    if decimal == ".":
        with contextlib.suppress(pyarrow.ArrowInvalid):  # much the fastest, if all are numbers
            return np.asarray(cells.cast("float64", safe=False))
    return plain_numbers(cells, decimal)[1]


def contents_of(columns: Sequence[Column], block: Block, format: TableFormat) -> list[str]:
    """The content of each row: equal for rows whose cells mean the same, see Column.content. ""
    for one that has a cell without a meaning."""
    ordered = sorted(columns, key=attrgetter("name"))
    rows = zip(*(_contents(column, block, format) for column in ordered), strict=True)
    return [f"[{', '.join(row)}]" if all(row) else "" for row in rows]


def _contents(column: Column, block: Block, format: TableFormat) -> Sequence[str]:
    """The repr of Column.content of each row; "" where it raises ValueError."""

    def content(cells: Mapping[str, Any]) -> str:
        try:
            return repr(column.content(cells, format))
        except ValueError:
            return ""

    if column.parts:
        return [*map(content, block.by_row(column.parts))]
    cells = packed(block.cells(column.name))
    number = Column(column.name, "float32", separator=column.separator)
    contents = np.full(len(block), "", object)
    if plain := _plain(number, cells, format):
        numbers = plain[0].to_numpy()
        places = np.flatnonzero(plain[1] & (np.abs(numbers) < MOST_EXACT))
        found = numbers[places].astype(np.float32).tolist()
        contents[places] = [f"({column.name!r}, [{value!r}])" for value in found]
    rows = np.flatnonzero(contents == "")
    firsts, numbers = different(taken(cells, rows))
    others = [content(_named(column.name, cell)) for cell in objects(cells, rows[firsts])]
    contents[rows] = np.array(others, object)[numbers]
    return contents.tolist()
