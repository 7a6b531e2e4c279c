"""The records of a block of rows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from converters.table.block_values import Values, named, num_rounded, value_at, values_of
from converters.table.columns import Column
from pipeline.errors import Reject, SchemaError
from pipeline.raw.block import Block, objects
from pipeline.shards.example import encode_example
from pipeline.shards.example_block import Blobs, encode_examples
from pipeline.shards.schema import Schema, TableFormat


class Records:
    """The values of a block, column by column.

    errors: of the rows that make no record, each its first. rounded: int64 [rows], how many of
    their numbers float32 changes, other than in their fractions."""

    def __init__(self, block: Block, format: TableFormat, errors: Mapping[int, str]) -> None:
        self.errors = {**errors}
        self.rounded = np.zeros(len(block), np.int64)
        self._block = block
        self._format = format
        self._values = dict[str, Values]()

    def add(self, column: Column) -> None:
        """Adds a column of any kind but files."""
        values, errors = values_of(column, self._block, self._format)
        self._values[column.feature_key] = values
        self.errors = {**errors, **self.errors}
        self.rounded += num_rounded(column, values, self._block, self._format, errors)

    def add_files(self, column: Column, file_of: Callable[[int, Any, str], bytes]) -> None:
        """Adds a column of files. file_of: gets the row, the cell and the kind."""
        cells = self._block.cells(column.name)
        values: list[Any] = [None] * len(self._block)
        for row in range(len(self._block)):
            if row in self.errors:
                continue

            def read(cell: Any, kind: str, row: int = row) -> bytes:
                return file_of(row, cell, kind)

            try:
                (cell,) = objects(cells, np.array([row]))
                values[row] = column.value(named(column.name, cell), read, self._format)
            except (ValueError, Reject) as e:
                self.errors[row] = str(e)
        self._values[column.feature_key] = values

    def encoded(self, schema: Schema) -> tuple[np.ndarray, bytes, np.ndarray]:
        """The rows that make a record, the records, and the size of each."""
        good = np.array([row for row in range(len(self._block)) if row not in self.errors], int)
        if not any(isinstance(values, list) for values in self._values.values()):
            columns = {key: _taken(values, good) for key, values in self._values.items()}
            data, sizes = encode_examples(schema, columns)
            return good, data.tobytes(), sizes
        records = dict[int, bytes]()
        for row in good.tolist():
            try:
                values = {key: value_at(values, row) for key, values in self._values.items()}
                records[row] = encode_example(schema, values)
            except SchemaError as e:
                self.errors[row] = str(e)
        sizes = np.array([*map(len, records.values())], np.int64)
        return np.array([*records], int), b"".join(records.values()), sizes


def _taken(values: Any, rows: np.ndarray) -> Any:
    if isinstance(values, Blobs):
        return Blobs(values.data, values.begins[rows], values.sizes[rows])
    return values[rows]
