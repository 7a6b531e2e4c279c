"""The values of a feature for a block of rows: those of Column.value, which is called only for
cells that are not plain, and once for those that are equal."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from converters.table.columns import CLASS_NAME, MOST_EXACT, Column
from pipeline.raw.block import ABSENT, Block, Cells, NumberCells, cell_at
from pipeline.raw.text_cells import FLOAT, INTEGER, PAD, TextCells, distinct, parse_numbers
from pipeline.shards.example import FLOAT32_END
from pipeline.shards.example_block import Blobs
from pipeline.shards.schema import TableFormat

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
    if column.parts:
        return _parts(column, block, format)
    if column.separator or column.shape:
        return _objects(column, block, format)
    return _values(column, block.cells(column.name), _readable(block), format)


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
    if not isinstance(values, np.ndarray):
        rows = np.flatnonzero(good)
    else:
        large = np.abs(values.reshape(len(block), -1)) >= MOST_EXACT
        rows = np.flatnonzero(large.any(axis=1) & good)
    names = column.parts or [column.name]
    columns = {name: block.cells(name) for name in names} if len(rows) else {}

    def rounded(cells: Mapping[str, Any]) -> int:
        return column.num_rounded(column.value(cells, _no_file, format), cells, format)

    if len(columns) == 1 and not isinstance(values, list):
        found, numbers = _of_different(rounded, column.name, columns[column.name], rows)
        out[rows] = np.array([number for number, _ in found], np.int64)[numbers]
        return out
    for row in rows.tolist():
        cells = {name: cell_at(cells, row) for name, cells in columns.items()}
        out[row] = rounded({name: cell for name, cell in cells.items() if cell is not ABSENT})
    return out


def _readable(block: Block) -> np.ndarray:
    out = np.ones(len(block), bool)
    out[[*block.errors]] = False
    return out


def _no_file(cell: Any, kind: str) -> bytes:
    raise AssertionError(f"{cell!r:.60} of the kind {kind}")


def _parts(
    column: Column, block: Block, format: TableFormat
) -> tuple[np.ndarray, Mapping[int, str]]:
    """float32 [n, parts]. Errors are of the first part that has one."""
    out = np.empty((len(block), len(column.parts)), np.float32)
    errors = dict[int, str]()
    readable = _readable(block)
    for n, name in enumerate(column.parts):
        part = Column(name, "float32", parts=(name,))
        out[:, n], more = _values(part, block.cells(name), readable, format)
        errors = {**more, **errors}
    return out, errors


def _objects(
    column: Column, block: Block, format: TableFormat
) -> tuple[list[Any], Mapping[int, str]]:
    values = list[Any]()
    errors = dict[int, str]()
    cells = block.cells(column.name)
    for row in range(len(block)):
        values.append(None)
        if row not in block.errors:
            try:
                values[row] = column.value(named(column.name, cells, row), _no_file, format)
            except ValueError as e:
                errors[row] = str(e)
    return values, errors


def named(name: str, cells: Cells, row: int) -> Mapping[str, Any]:
    """The cell of a row by its column; none if it has none."""
    cell = cell_at(cells, row)
    return {} if cell is ABSENT else {name: cell}


def _values(
    column: Column, cells: Cells, readable: np.ndarray, format: TableFormat
) -> tuple[Any, Mapping[int, str]]:
    values, is_plain = _plain(column, cells, len(readable), format)
    rows = np.flatnonzero(readable & ~is_plain)
    if not len(rows):
        return values, {}

    def value(cells: Mapping[str, Any]) -> Any:
        found = column.value(cells, _no_file, format)
        return found[0] if isinstance(found, list) else found

    found, numbers = _of_different(value, column.name, cells, rows)
    bad = np.array([bool(error) for _, error in found])[numbers]
    pairs = zip(rows[bad].tolist(), numbers[bad].tolist(), strict=True)
    errors = {row: found[i][1] for row, i in pairs}
    results = [result for result, _ in found]
    if isinstance(values, Blobs):
        return _with_blobs(values, rows, results, numbers), errors
    dtype = np.float64 if column.kind == "float32" else np.int64
    table = np.array([0 if result is None else result for result in results], dtype)
    values[rows] = table[numbers]
    return values, errors


def _plain(
    column: Column, cells: Cells, size: int, format: TableFormat
) -> tuple[np.ndarray | Blobs, np.ndarray]:
    """The values of plain cells, and which are plain."""
    if column.kind in ("text", "bytes") and not isinstance(cells, NumberCells):
        return _plain_texts(cells, size, column)
    if column.kind in ("float32", "int64") and format.keeps_numbers:
        if column.kind == "int64":
            return _plain_integers(cells, size, format)
        floats = _plain_floats(cells, size, format)
        is_plain = np.abs(floats) < FLOAT32_END
        if column.parts and isinstance(cells, NumberCells):
            is_plain &= cells.values.dtype != bool
        return np.where(is_plain, floats, 0).astype(np.float32), is_plain
    none = np.zeros(size, bool)
    if column.kind in ("text", "bytes", CLASS_NAME):
        return _blobs([b""] * size), none
    return np.zeros(size, np.float32 if column.kind == "float32" else np.int64), none


def _plain_floats(cells: Cells, size: int, format: TableFormat) -> np.ndarray:
    """float64 with the float32 of the cells; NaN for those that are not plain."""
    if isinstance(cells, TextCells):
        parsed = parse_numbers(cells, format.decimal)
        return np.where((parsed.kinds == INTEGER) | (parsed.kinds == FLOAT), parsed.floats, np.nan)
    if isinstance(cells, NumberCells):
        return np.where(_have_value(cells, size), cells.values.astype(np.float64), np.nan)
    numbers = (cell if type(cell) in (float, int) else np.nan for cell in cells)
    try:
        return np.fromiter(numbers, np.float64, size)
    except OverflowError:
        return np.full(size, np.nan)


def _plain_integers(cells: Cells, size: int, format: TableFormat) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(cells, TextCells):
        parsed = parse_numbers(cells, format.decimal)
        return parsed.integers, parsed.kinds == INTEGER
    if isinstance(cells, NumberCells):
        is_plain = _have_value(cells, size) & (cells.values.dtype.kind != "f")
        return np.where(is_plain, cells.values, 0).astype(np.int64), is_plain
    is_plain = np.fromiter((type(cell) is int for cell in cells), bool, size)
    numbers = cells if is_plain.all() else [cell if type(cell) is int else 0 for cell in cells]
    try:
        return np.fromiter(numbers, np.int64, size), is_plain
    except OverflowError:
        return np.zeros(size, np.int64), np.zeros(size, bool)


def _plain_texts(
    cells: TextCells | Sequence[Any], size: int, column: Column
) -> tuple[Blobs, np.ndarray]:
    has_bytes = column.kind == "bytes"
    if isinstance(cells, TextCells):
        begins, ends = cells.begin.astype(np.int64), cells.end.astype(np.int64)
        blobs = Blobs(cells.data, begins, ends - begins)
        is_plain = _have_value(cells, size)
        text = cells.data[PAD:-PAD]
    else:
        pieces = [_encoded(cell, has_bytes) for cell in cells]
        is_plain = np.fromiter((piece is not None for piece in pieces), bool, size)
        blobs = _blobs([piece or b"" for piece in pieces])
        text = blobs.data
    if column.required and not has_bytes:
        is_plain &= (blobs.sizes > 0) & bool(text.all())  # zero bytes are errors, too
    return blobs, is_plain


def _encoded(cell: Any, has_bytes: bool) -> bytes | None:
    """The value of a text, or of bytes; None for others."""
    if type(cell) is str:
        with contextlib.suppress(UnicodeEncodeError):
            return cell.encode()
    return cell if has_bytes and type(cell) is bytes else None


def _have_value(cells: TextCells | NumberCells, size: int) -> np.ndarray:
    return np.ones(size, bool) if cells.nulls is None else ~cells.nulls


def _blobs(pieces: Sequence[bytes]) -> Blobs:
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    data = np.frombuffer(b"".join(pieces), np.uint8)
    return Blobs(data, np.cumsum(sizes) - sizes, sizes)


def _of_different(
    function: Callable[[Mapping[str, Any]], Any], name: str, cells: Cells, rows: np.ndarray
) -> tuple[Sequence[tuple[Any, str]], np.ndarray]:
    """The results of the different cells among these rows, each with the text of its ValueError or
    "", and which of them each row has."""
    first, numbers = _different(cells, rows)
    found = list[tuple[Any, str]]()
    for row in rows[first].tolist():
        try:
            found.append((function(named(name, cells, row)), ""))
        except ValueError as e:
            found.append((None, str(e)))
    return found, numbers


def _different(cells: Cells, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One row of each different cell, as its place in rows, and for each row which of them it
    has."""
    if isinstance(cells, TextCells):
        return distinct(cells.take(rows))
    if isinstance(cells, NumberCells):
        taken = cells.take(rows)
        bits = taken.values.view(f"u{taken.values.itemsize}")  # in which -0.0 is not 0.0
        keys = np.unique(bits, return_inverse=True)[1]
        keys = keys if taken.nulls is None else 2 * keys + taken.nulls
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        return first, numbers
    seen = dict[Any, int]()
    first = list[int]()
    numbers = np.empty(len(rows), np.int64)
    for i, row in enumerate(rows.tolist()):
        cell = cells[row]
        key = (type(cell), cell) if type(cell) in _ALIKE else i
        numbers[i] = seen.setdefault(key, len(seen))
        if len(first) < len(seen):
            first.append(i)
    return np.array(first, np.int64), numbers


def _with_blobs(
    blobs: Blobs, rows: np.ndarray, results: Sequence[Any], numbers: np.ndarray
) -> Blobs | list[Any]:
    """The blobs with these results at these rows; a list if a result is not bytes."""
    pieces = [b"" if result is None else result for result in results]
    if not all(isinstance(piece, bytes) for piece in pieces):
        values = dict(zip(rows.tolist(), numbers.tolist(), strict=True))
        return [results[values[i]] if i in values else b"" for i in range(len(blobs.begins))]
    more = _blobs(pieces)
    blobs.begins[rows] = (more.begins + len(blobs.data))[numbers]
    blobs.sizes[rows] = more.sizes[numbers]
    return blobs._replace(data=np.concatenate([blobs.data, more.data]))


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
    lists = [_contents(column, block, format) for column in ordered]
    rows = zip(*lists, strict=True)
    return [f"[{', '.join(row)}]" if all(row) else "" for row in rows]


def _contents(column: Column, block: Block, format: TableFormat) -> list[str]:
    """The repr of Column.content of each row; "" where it raises ValueError."""

    def content(cells: Mapping[str, Any]) -> str:
        try:
            return repr(column.content(cells, format))
        except ValueError:
            return ""

    if column.parts:
        return [content(block.cells_at(row)) for row in range(len(block))]
    cells = block.cells(column.name)
    floats = np.full(len(block), np.nan)
    if not column.separator:
        floats = _plain_floats(cells, len(block), format)
    is_plain = np.abs(floats) < MOST_EXACT
    numbers = np.where(is_plain, floats, 0).astype(np.float32).tolist()
    contents = [f"({column.name!r}, [{number!r}])" for number in numbers]
    rows = np.flatnonzero(~is_plain)
    found, places = _of_different(content, column.name, cells, rows)
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        contents[row] = found[place][0]
    return contents
