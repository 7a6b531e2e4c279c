"""The records of a block of rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pyarrow import types

from converters.table.block_values import FileOf, values_of
from converters.table.columns import Column
from pipeline.errors import SchemaError
from pipeline.raw.block import Block, taken
from pipeline.raw.text_cells import text_buffers
from pipeline.shards.example import encode_example
from pipeline.shards.example_block import Blobs, encode_examples
from pipeline.shards.schema import Feature, Schema, TableFormat


class Records:
    """The values of a block, column by column.

    errors: of the rows that make no record, each its first. rounded: int64 [rows], how many of
    their numbers float32 changes, other than in their fractions."""

    def __init__(self, block: Block, format: TableFormat, errors: Mapping[int, str]) -> None:
        self.errors = {**errors}
        self.rounded = np.zeros(len(block), np.int64)
        self._block = block
        self._format = format
        self._values = dict[str, Any]()

    def add(self, column: Column, file_of: FileOf | None = None) -> None:
        """Adds a column. file_of: of files."""
        values, rounded = values_of(column, self._block, self._format, self.errors, file_of)
        self._values[column.feature_key] = values
        self.rounded += rounded

    def encoded(self, schema: Schema) -> tuple[np.ndarray, bytes, np.ndarray]:
        """The rows that make a record, the records, and the size of each."""
        good = np.delete(np.arange(len(self._block)), [*self.errors])
        columns = {key: taken(values, good) for key, values in self._values.items()}
        if not any(types.is_list(values.type) for values in columns.values()):
            arrays = {key: _array(schema.features[key], each) for key, each in columns.items()}
            data, sizes = encode_examples(schema, arrays)
            return good, data.tobytes(), sizes
        records = dict[int, bytes]()
        for row, *values in zip(
            good.tolist(), *(each.to_pylist() for each in columns.values()), strict=True
        ):
            try:
                records[row] = encode_example(schema, dict(zip(columns, values, strict=True)))
            except SchemaError as e:
                self.errors[row] = str(e)
        sizes = np.array([*map(len, records.values())], np.int64)
        return np.array([*records], int), b"".join(records.values()), sizes


def _array(feature: Feature, values: Any) -> np.ndarray | Blobs:
    if feature.dtype == "bytes":
        data, places = text_buffers(values)
        return Blobs(data, places[:-1], np.diff(places))
    numbers = values.flatten() if feature.shape else values
    return numbers.to_numpy().astype(feature.dtype).reshape(len(values), *feature.shape)
