"""Tables of any columns: each row becomes a record, each column a feature of the same name.

The rows are encoded once, to packed files, because a record's bytes cannot be found in tables of every format. Pure:
reads raw data through a Storage, returns values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Pack, Reject, Source, Unusable
from beam_jobs.packed_files import check_record
from beam_jobs.references import Reference, References
from converters.raw.batches import batches
from converters.raw.splits import is_of
from converters.table.cells import text_cell
from converters.table.columns import MISSING, Column
from converters.table.converter import find_image
from pipeline.errors import SchemaError
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.rows import ARROW_SUFFIXES, TableRow, table_rows
from pipeline.shards.example import Value, encode_example
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage

_WINDOW_BYTES = 16 * 10**6


@dataclass(frozen=True)
class RowConverter:
    """The converter of rows. See Packer. Keys are file and line, unless there is a key_column.

    label: the column whose classes the manifest names. The others are as of TableConverter."""

    columns: tuple[Column, ...]
    label: str | None = None
    key_column: str | None = None
    delimiter: str | None = None
    validation_fraction: float | None = None
    to_jpeg: ToJpeg = field(default_factory=ToJpeg)

    name = "table"
    transforms = False
    worker_files = ()

    @property
    def schema(self) -> Schema:
        return self._schema

    @cached_property
    def _schema(self) -> Schema:
        return Schema("table", {column.name: column.feature for column in self.columns})

    @property
    def labels(self) -> Labels | None:
        named = (column.names for column in self.columns if column.name == self.label)
        return next((Labels(self.label or "", 0, names) for names in named if names), None)

    @cached_property
    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Of each category."""
        return {column.name: column.names for column in self.columns if column.kind == "category"}

    def digest_fields(self) -> Mapping[str, Any]:
        return {"converter": "rows/1", **asdict(self)}

    def files(self) -> Mapping[str, bytes]:
        return {}

    def windows(self, storage: Storage, source: Source) -> Iterator[Sequence[tuple[str, TableRow]]]:
        names = [column.name for column in self.columns] + [self.key_column or self.columns[0].name]
        rows = (self._keyed(source, row) for row in table_rows(storage, source.uri, self.delimiter, names))
        mine = (each for each in rows if is_of(source.split, each[0], self.validation_fraction))
        return batches(mine, lambda each: each[1].size, _WINDOW_BYTES)

    def _keyed(self, source: Source, row: TableRow) -> tuple[str, TableRow]:
        place = f"{source.uri.rpartition('/')[2]}:{row.line}"
        try:
            return text_cell(row.cells, self.key_column) if self.key_column and not row.error else place, row
        except ValueError as error:
            return place, row._replace(error=str(error))

    def pack(self, source: Source, number: int, window: Sequence[tuple[str, TableRow]]) -> Pack:
        del number  # keys are unique in the source
        unit = "row" if source.uri.endswith(ARROW_SUFFIXES) else "line"
        good, unusable = list[tuple[str, bytes]](), list[Unusable]()
        for place, row in window:
            key, error = f"{source.split}/{place}", row.error
            try:
                if not error:
                    good.append((key, encode_example(self.schema, self._values(source.uri, row))))
            except (ValueError, Reject, SchemaError) as found:
                error = str(found)
            if error:
                unusable.append(Unusable(key, source.file, row.offset, f"{unit} {row.line}: {error}"))
        return Pack([key for key, _ in good], [payload for _, payload in good], {}, unusable)

    def _values(self, table: str, row: TableRow) -> Mapping[str, Value]:
        jpeg = partial(self._jpeg, table)
        values = {column.name: column.value(row.cells.get(column.name), jpeg) for column in self.columns}
        if self.label and values[self.label] == MISSING:
            raise ValueError(f"{self.label!r} is missing, which is the label")
        return values

    def _jpeg(self, table: str, cell: Any) -> bytes:
        """The image in a cell, or in the file that it names. Raises ValueError, Reject."""
        data = cell.get("bytes") or cell.get("path") if isinstance(cell, Mapping) else cell
        if isinstance(data, str) and data:
            storage = open_storage(table)
            file = find_image(storage, table, data)
            if isinstance(file, str):
                raise ValueError(file)
            data = storage.read(file.uri)
        if not isinstance(data, bytes):
            raise ValueError(f"an image is {data!r:.60}; it must be the path of a file, or its bytes")
        return self.to_jpeg(data).data

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Exact."""
        return refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter. data: the record. Raises RawDataError if it is damaged."""
        check_record(ref, data)
        values = decode_example(data)
        classes = {name: values.pop(name) for name in self.class_names}
        numbers = {name: each for name, each in values.items() if self.schema.features[name].dtype != "bytes"}
        return Converted(data, numbers=numbers, classes=classes)
