"""The records of a block of rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from pyarrow import types

from converters.table.block_values import FileOf, values_of
from converters.table.columns import Column
from pipeline.errors import SchemaError
from pipeline.raw.block import Block
from pipeline.raw.text_cells import text_buffers
from pipeline.shards.example import encode_example
from pipeline.shards.example_block import Blobs, encode_examples
from pipeline.shards.schema import Feature, Schema


class Records(NamedTuple):
    """Records, one after the other.

    rows: that they are of. sizes: of each. rounded: how many of the numbers of each row float32
    changes, other than in their fractions. All int64."""

    rows: np.ndarray
    data: bytes
    sizes: np.ndarray
    rounded: np.ndarray


def records_of(
    columns: Sequence[Column], schema: Schema, block: Block, errors: dict[int, str], file_of: FileOf
) -> Records:
    """The records of the rows of a block that have no errors.

    schema: of the columns. errors: gets the first of each other row."""
    values = dict[str, Any]()
    rounded = np.zeros(len(block), np.int64)
    for column in columns:
        key = column.feature_key
        values[key], counts = values_of(column, block, schema.table, errors, file_of)
        rounded += counts
    rows = np.setdiff1d(np.arange(len(block)), [*errors])
    batch = pyarrow.RecordBatch.from_pydict(values)
    if len(rows) < len(block):
        batch = batch.take(pyarrow.array(rows))
    if not any(map(types.is_list, batch.schema.types)):
        arrays = {key: _array(feature, batch[key]) for key, feature in schema.features.items()}
        data, sizes = encode_examples(schema, arrays)
        return Records(rows, data.tobytes(), sizes, rounded[rows])
    records = dict[int, bytes]()
    for row, cells in zip(rows.tolist(), batch.to_pylist(), strict=True):
        try:
            records[row] = encode_example(schema, cells)
        except SchemaError as e:
            errors[row] = str(e)
    rows = np.array([*records], int)
    sizes = np.array([*map(len, records.values())], np.int64)
    return Records(rows, b"".join(records.values()), sizes, rounded[rows])


def _array(feature: Feature, values: Any) -> np.ndarray | Blobs:
    if feature.dtype == "bytes":
        data, places = text_buffers(values)
        return Blobs(data, places[:-1], np.diff(places))
    numbers = values.flatten() if feature.shape else values
    return numbers.to_numpy().astype(feature.dtype).reshape(len(values), *feature.shape)
