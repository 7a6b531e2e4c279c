"""The values of a feature for a block of rows: those of Column.value, which is called only for
cells that are not plain, and once for those that are equal."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow
from pyarrow import types

from converters.table.columns import CLASS_NAME, MOST_EXACT, Column
from pipeline.raw.block import ABSENT, Block, Cells, objects, taken
from pipeline.raw.text_cells import INTEGER, plain_numbers, text_buffers, where
from pipeline.shards.example import FLOAT32_END
from pipeline.shards.example_block import Blobs
from pipeline.shards.schema import TableFormat

_PACKED = ({str}, {int}, {float}, {int, float})  # what arrays may hold beside nulls
_ALIKE = (str, int, bool, type(None))  # objects that mean the same if they are equal

Values = np.ndarray | Blobs | list[Any]


def values_of(
    column: Column, block: Block, format: TableFormat
) -> tuple[Values, Mapping[int, str]]:
    """The value of each row, and by row the text of the ValueError of Column.value, where the value
    may be anything, as it is for block.errors.

    column: of any kind but image and file, which depend on more than the cell. Returns float32 or
    int64 [n], or [n, parts]; Blobs of texts, names of classes and bytes; a list of what
    Column.value returns of columns with a shape or a separator."""
    if not column.parts:
        return _values(column, block, format)
    values = np.empty((len(block), len(column.parts)), np.float32)
    errors = dict[int, str]()
    for n, name in enumerate(column.parts):
        part = Column(name, "float32", parts=(name,))
        values[:, n], more = _values(part, block, format)
        errors = {**more, **errors}  # of a row, that of the first part
    return values, errors


def num_rounded(
    column: Column, values: Values, block: Block, format: TableFormat, errors: Mapping[int, str]
) -> np.ndarray:
    """Column.num_rounded of each row, int64 [n]; 0 for rows with errors. values, errors: of
    values_of."""
    out = np.zeros(len(block), np.int64)
    if column.kind != "float32":
        return out
    good = _readable(block)
    good[[*errors]] = False
    if isinstance(values, np.ndarray):
        large = np.abs(values) >= MOST_EXACT
        good &= large.any(axis=1) if column.parts else large
    rows = np.flatnonzero(good)
    names = column.parts or [column.name]
    columns = [objects(block.cells(name), rows) for name in names] if len(rows) else []
    for row, *items in zip(rows.tolist(), *columns, strict=True):
        pairs = zip(names, items, strict=True)
        cells = {name: cell for name, cell in pairs if cell is not ABSENT}
        value = column.value(cells, _no_file, format)
        out[row] = column.num_rounded(value, cells, format)
    return out


def _readable(block: Block) -> np.ndarray:
    out = np.ones(len(block), bool)
    out[[*block.errors]] = False
    return out


def _no_file(cell: Any, kind: str) -> bytes:
    raise AssertionError(f"{cell!r:.60} of the kind {kind}")


def _values(column: Column, block: Block, format: TableFormat) -> tuple[Any, Mapping[int, str]]:
    cells = block.cells(column.name)
    values, is_plain = _plain(column, _packed(cells), len(block), format)
    rows = np.flatnonzero(_readable(block) & ~is_plain)
    if not len(rows):
        return values, {}
    items, _, numbers = different(taken(cells, rows))
    results = list[Any]()
    texts = list[str]()
    for cell in items:
        try:
            value: Any = column.value(named(column.name, cell), _no_file, format)
            results.append(value[0] if column.parts else value)
            texts.append("")
        except ValueError as e:
            results.append(None)
            texts.append(str(e))
    pairs = zip(rows.tolist(), numbers.tolist(), strict=True)
    errors = {row: texts[number] for row, number in pairs if texts[number]}
    return _filled(values, rows, results, numbers), errors


def different(cells: Cells) -> tuple[Sequence[Any], np.ndarray, np.ndarray]:
    """The different cells, the first place of each, and which of them each cell is."""
    if isinstance(cells, pyarrow.Array):
        encoded = cells if types.is_dictionary(cells.type) else cells.dictionary_encode()
        keys: Any = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    else:
        numbers = dict[Any, int]()
        pairs = enumerate(cells)
        keys = np.array([numbers.setdefault(_key(cell, i), len(numbers)) for i, cell in pairs], int)
    _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
    return objects(cells, firsts), firsts, places


def _key(cell: Any, i: int) -> tuple[type, Any]:
    """Equal for cells that mean the same."""
    kind = type(cell)
    return kind, cell if kind in _ALIKE else str(cell) if kind is float else i


def _filled(values: Any, rows: np.ndarray, results: Sequence[Any], numbers: np.ndarray) -> Values:
    """The values, with results[number] at these rows; None is an error."""
    if isinstance(values, Blobs) and all(isinstance(each or b"", bytes) for each in results):
        more = _blobs([each or b"" for each in results])
        values.begins[rows] = (more.begins + len(values.data))[numbers]
        values.sizes[rows] = more.sizes[numbers]
        return values._replace(data=np.concatenate([values.data, more.data]))
    if not isinstance(values, np.ndarray):
        by_row = dict(zip(rows.tolist(), numbers.tolist(), strict=True))
        count = len(values.sizes) if isinstance(values, Blobs) else len(values)
        return [results[by_row[row]] if row in by_row else None for row in range(count)]
    found = [0 if each is None else each for each in results]
    values[rows] = np.array(found, values.dtype)[numbers]
    return values


def _packed(cells: Cells) -> Cells:
    """An array of texts or numbers among objects, if all others are None or ABSENT."""
    if isinstance(cells, pyarrow.Array):
        return cells
    found = [None if cell is ABSENT else cell for cell in cells]
    kinds = {*map(type, found)} - {type(None)}
    kind = pyarrow.string() if kinds == {str} else pyarrow.int64()
    kind = pyarrow.float64() if float in kinds else kind
    try:
        return pyarrow.array(found, kind) if kinds in _PACKED else cells
    except (UnicodeEncodeError, OverflowError, pyarrow.ArrowInvalid):
        return cells


def _plain(
    column: Column, cells: Cells, size: int, format: TableFormat
) -> tuple[Values, np.ndarray]:
    """The values of plain cells, and which are plain."""
    none = np.zeros(size, bool)
    if column.separator or column.shape:
        return [None] * size, none
    is_array = isinstance(cells, pyarrow.Array)
    kind = cells.type if is_array else None
    is_text = is_array and not (types.is_primitive(kind) or types.is_boolean(kind))
    if column.kind in ("text", "bytes", CLASS_NAME):
        if not is_text or column.kind == CLASS_NAME:
            return _blobs([b""] * size), none
        blobs = _blobs_of(cells)
        have_value = cells.is_valid().to_numpy(zero_copy_only=False)
        if column.required and column.kind == "text":  # of which zero bytes are errors, too
            have_value = have_value & (blobs.sizes > 0) & bool(blobs.data.all())
        return blobs, have_value
    if column.kind == "category" or not is_array or not format.keeps_numbers:
        return np.zeros(size, np.float32 if column.kind == "float32" else np.int64), none
    if types.is_dictionary(kind):  # each different text once
        return _plain(column, [None] * size, size, format)
    if is_text:
        kinds, floats = plain_numbers(cells, format.decimal)
        is_integer = kinds == INTEGER
        if column.kind == "int64":
            integers = where(is_integer, cells).cast(pyarrow.int64()).fill_null(0)
            return integers.to_numpy().copy(), is_integer
    else:
        have_value = cells.is_valid().to_numpy(zero_copy_only=False)
        nothing = pyarrow.scalar(0).cast(kind)
        values = cells.fill_null(nothing).to_numpy(zero_copy_only=False)
        if column.kind == "int64":
            is_integer = have_value & (values.dtype.kind != "f")
            return np.where(is_integer, values, 0).astype(np.int64), is_integer
        if column.parts and values.dtype == bool:
            have_value = none
        floats = np.where(have_value, values.astype(np.float64), np.nan)
    is_float = np.abs(floats) < FLOAT32_END  # which NaN is not
    return np.where(is_float, floats, 0).astype(np.float32), is_float


def _blobs_of(texts: Any) -> Blobs:
    rows: Any = slice(None)
    if types.is_dictionary(texts.type):
        rows = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        texts = texts.dictionary
        if not len(texts):
            return _blobs([b""] * len(rows))
    data, places = text_buffers(texts)
    return Blobs(data, places[:-1][rows], np.diff(places)[rows])


def _blobs(pieces: Sequence[bytes]) -> Blobs:
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    data = np.frombuffer(b"".join(pieces), np.uint8)
    return Blobs(data, np.cumsum(sizes) - sizes, sizes)


def named(name: str, cell: Any) -> Mapping[str, Any]:
    """The cell of a row by its column; nothing if it is ABSENT."""
    return {} if cell is ABSENT else {name: cell}


def value_at(values: Values, row: int) -> Any:
    """The value of a row, as Column.value returns it."""
    if isinstance(values, Blobs):
        begin = values.begins[row]
        return values.data[begin : begin + values.sizes[row]].tobytes()
    return values[row].tolist() if isinstance(values, np.ndarray) else values[row]


def contents_of(columns: Sequence[Column], block: Block, format: TableFormat) -> list[str]:
    """The content of each row: equal for rows whose cells mean the same, see Column.content. ""
    for one that has a cell without a meaning."""
    ordered = sorted(columns, key=attrgetter("name"))
    rows = zip(*(_contents(column, block, format) for column in ordered), strict=True)
    return [f"[{', '.join(row)}]" if all(row) else "" for row in rows]


def _contents(column: Column, block: Block, format: TableFormat) -> list[str]:
    """The repr of Column.content of each row; "" where it raises ValueError."""

    def content(cells: Mapping[str, Any]) -> str:
        try:
            return repr(column.content(cells, format))
        except ValueError:
            return ""

    if column.parts:
        return [content(block.row(row).cells) for row in range(len(block))]
    cells = block.cells(column.name)
    number = Column(column.name, "float32", column.shape, separator=column.separator)
    values, is_plain = _plain(number, _packed(cells), len(block), format)
    if isinstance(values, np.ndarray):
        is_plain &= np.abs(values) < MOST_EXACT
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    contents = [f"({column.name!r}, [{value!r}])" for value in plain]
    rows = np.flatnonzero(~is_plain)
    items, _, numbers = different(taken(cells, rows))
    found = [content(named(column.name, cell)) for cell in items]
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        contents[row] = found[number]
    return contents
