"""Rows of Parquet, Arrow and Feather files in blocks: texts and numbers without Python objects.

Columns of other types have the objects that `arrow_tables` makes of their cells. Like it, this is
imported only to read such a file."""

from collections.abc import Iterator, Mapping, Sequence, Set
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute, types

from pipeline.raw.arrow_tables import (
    VALUE_BYTES,
    batches_of,
    cells_of,
    class_names,
    opened,
    plain_type,
    scale_of,
    size_of,
    unit_of,
)
from pipeline.raw.block import Block, Cells, NumberCells
from pipeline.raw.rows import Table
from pipeline.raw.text_cells import PAD, TextCells


def arrow_blocks(
    table: Table, columns: Set[str] | None, units: Mapping[str, str]
) -> Iterator[Block]:
    """The rows of table.rows(columns, units). Raises as it does."""
    line = 1
    uri = table.uri
    with opened(uri) as file:
        for batch in batches_of(file, uri, columns):
            named = class_names(batch.schema)
            cells = dict[str, Cells]()
            sizes = np.zeros(batch.num_rows if batch.num_columns else 0, np.int64)
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                scale = scale_of(uri, name, unit_of(array.type), units.get(name))
                cells[name], size = _column(array, named.get(name), scale)
                sizes += size
            lines = np.arange(line, line + len(sizes))
            line += len(sizes)
            yield Block(lines, lines, sizes, np.ones_like(sizes), {}, cells, table.of_folders)


def _column(
    array: Any, names: Sequence[str] | None, scale: Fraction
) -> tuple[Cells, np.ndarray | int]:
    """The cells, and the size of each; see size_of."""
    if names is None and scale == 1:
        if _is_text(array.type):
            return _texts(array)
        if types.is_dictionary(array.type) and _is_text(array.type.value_type):
            cells = _of_dictionary(array)
            if cells:
                return cells
        elif _is_number(kind := plain_type(array.type)):
            return _numbers(array.cast(kind)), VALUE_BYTES
    cells = cells_of(array, names, scale)
    return cells, np.fromiter(map(size_of, cells), np.int64, len(cells))


def _is_text(kind: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _is_number(kind: Any) -> bool:
    """Whether NumberCells can have them; uint64 may be beyond int64."""
    is_integer = types.is_integer(kind) and not types.is_uint64(kind)
    return is_integer or types.is_floating(kind) or types.is_boolean(kind)


def _nulls(array: Any) -> np.ndarray | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _numbers(array: Any) -> NumberCells:
    nulls = _nulls(array)
    values = array if nulls is None else array.fill_null(pyarrow.scalar(0).cast(array.type))
    return NumberCells(values.to_numpy(zero_copy_only=False), nulls)


def _texts(array: Any) -> tuple[TextCells, np.ndarray]:
    try:
        array.validate(full=True)
    except pyarrow.ArrowInvalid:
        array.to_pylist()  # says which text is not UTF-8
        raise
    _, offsets, data = array.buffers()
    dtype = np.int32 if types.is_string(array.type) else np.int64
    places = np.zeros(1, dtype)
    if offsets is not None and len(array):
        places = np.frombuffer(offsets, dtype)[array.offset :][: len(array) + 1]
    used = memoryview(data or b"")[int(places[0]) : int(places[-1])]
    nulls = _nulls(array)
    begin = places[:-1] - (places[0] - PAD)
    end = places[1:] - (places[0] - PAD)
    cells = TextCells(_padded(used), begin, end, nulls)
    sizes = end - begin
    if not bytes(used).isascii():
        characters = compute.call_function("utf8_length", [array])
        sizes = _numbers(characters).values
    return cells, sizes if nulls is None else np.where(nulls, VALUE_BYTES, sizes)


def _padded(data: Any) -> np.ndarray:
    return np.frombuffer(b"".join([bytes(PAD), data, bytes(PAD)]), np.uint8)


def _of_dictionary(array: Any) -> tuple[TextCells, np.ndarray] | None:
    """None if it has a null among its texts. The texts are not repeated."""
    if array.dictionary.null_count or not len(array.dictionary):
        return None
    texts, sizes = _texts(array.dictionary)
    indices = _numbers(array.indices)
    at = indices.values
    sizes = sizes[at] if indices.nulls is None else np.where(indices.nulls, VALUE_BYTES, sizes[at])
    return TextCells(texts.data, texts.begin[at], texts.end[at], indices.nulls), sizes
