"""Rows of Parquet, Arrow and Feather files in blocks: texts and numbers without Python objects.

Columns of other types have the objects that `arrow_tables` makes of their cells."""

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
from pipeline.raw.block import Block, Cells
from pipeline.raw.pieces import Piece
from pipeline.raw.rows import Table


def arrow_blocks(
    table: Table, columns: Set[str] | None, units: Mapping[str, str], piece: Piece
) -> Iterator[Block]:
    """The rows of table.rows(columns, units) in a piece. Raises as it does."""
    line = piece.line + 1
    uri = table.uri
    with opened(uri) as file:
        for batch in batches_of(file, uri, columns, range(line, piece.end)):
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
        kind = array.type.value_type if types.is_dictionary(array.type) else array.type
        if types.is_string(kind) or types.is_large_string(kind):
            return array, _text_sizes(array)
        kind = plain_type(array.type)
        if not types.is_dictionary(array.type) and _is_number(kind):
            return array.cast(kind), VALUE_BYTES
    cells = cells_of(array, names, scale)
    return cells, np.fromiter(map(size_of, cells), np.int64, len(cells))


def _is_number(kind: Any) -> bool:
    """Whether Cells can have them as an array; uint64 may be beyond int64."""
    is_integer = types.is_integer(kind) and not types.is_uint64(kind)
    return is_integer or types.is_floating(kind) or types.is_boolean(kind)


def _text_sizes(array: Any) -> np.ndarray:
    try:
        array.validate(full=True)
    except pyarrow.ArrowInvalid:
        array.to_pylist()  # says which text is not UTF-8
        raise
    is_dictionary = types.is_dictionary(array.type)  # whose texts may be long, and repeated
    texts = array.dictionary if is_dictionary else array
    sizes = compute.call_function("utf8_length", [texts])
    sizes = sizes.take(array.indices) if is_dictionary else sizes
    return sizes.fill_null(VALUE_BYTES).to_numpy(zero_copy_only=False).astype(np.int64)
