"""Tables (csv, tsv, jsonl): the base of their converters, and the converter of texts; `images` has that of images.

`layouts` finds the tables, `rows` reads their rows, `targets` has the kinds of labels and numbers. A reference to a
text points to its row in the table, which is read again to write the record: so texts are shuffled without staying in
memory. Pure: reads raw data through a Storage, returns values."""

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import File, Reference, References, bounded
from converters.raw.splits import is_of
from converters.table.cells import text_cell
from converters.table.rows import TableRow, parse_row, table_rows
from converters.table.targets import Target
from pipeline.errors import RawDataError
from pipeline.shards.example import Value
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.storage import Storage

_BYTES_AROUND_VALUE = 11  # tags and lengths of a feature, without key and value
_ROWS_PER_BATCH = 4096
_TEXT = Feature("bytes", content="text", doc="UTF-8")
_BYTES_AROUND = 8 + len("text") + _BYTES_AROUND_VALUE


@dataclass(frozen=True)
class TableConverter:
    """The base of both converters.

    column: of the content. key_column: None for the default keys. delimiter: of csv, None for the default.
    validation_fraction: None if each split has its own tables."""

    column: str
    target: Target
    key_column: str | None = None
    delimiter: str | None = None
    validation_fraction: float | None = None

    worker_files = ()
    _content_is_key = False  # else file and line are the key

    @property
    def labels(self) -> Labels | None:
        return self.target.labels

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without the fraction: the rows of a split already depend on it."""
        columns = {"column": self.column, "key_column": self.key_column, "delimiter": self.delimiter}
        return {"converter": "table/2", **columns, **self.target.digest_fields()}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a table."""
        file, rows = source.file, table_rows(storage, source.uri, self.delimiter)
        found = (self._reference(source.split, file, row) for row in rows)
        # Choose by the complete key: a shortened one depends on the split.
        chosen = ((line, bounded(row)) for line, row in found if self._is_of(source.split, row))
        while batch := list(itertools.islice(chosen, _ROWS_PER_BATCH)):
            yield References.of(self._located(storage, batch))

    def _is_of(self, split: str, row: Reference) -> bool:
        return is_of(split, row.key.removeprefix(f"{split}/"), self.validation_fraction)

    def _reference(self, split: str, file: File, row: TableRow) -> tuple[int, Reference]:
        """The line of the row, and a reference to the row itself."""
        place, error, content = f"{file.uri.rpartition('/')[2]}:{row.line}", row.error, ""
        numbers: Sequence[int | float] = ()
        try:
            if not error:
                content, numbers = self._content(row), self.target.numbers(row.cells)
                if self.key_column:
                    place = text_cell(row.cells, self.key_column)
                elif self._content_is_key:
                    place = content
        except ValueError as e:
            error = str(e)
        columns = {"target": " ".join(map(repr, numbers)).encode(), **self._columns(row, content)}
        error = error and f"line {row.line}: {error}"
        key = f"{split}/{place}"
        return row.line, Reference(key=key, file=file, offset=row.offset, size=row.size, error=error, columns=columns)

    def _target_bytes(self, refs: References) -> np.ndarray:
        """int64: what the target adds to each record, accurate to a few bytes."""
        return self.target.sizes(refs.columns["target"]) + sum(
            len(key.encode()) + _BYTES_AROUND_VALUE for key in self.target.features
        )

    def _target(self, ref: Reference) -> Mapping[str, Value]:
        """A value for each feature of the target."""
        return self.target.values(ref.text("target").decode().split())

    def _content(self, row: TableRow) -> str:
        """The content of a row. Raises ValueError."""
        return text_cell(row.cells, self.column)

    def _columns(self, row: TableRow, content: str) -> dict[str, int | bytes]:
        """Columns of the reference in addition to "target"."""
        raise NotImplementedError

    def _located(self, storage: Storage, batch: Sequence[tuple[int, Reference]]) -> Sequence[Reference]:
        """References to what `convert` reads, from the lines of rows and references to rows."""
        del storage
        return [ref for _, ref in batch]


@dataclass(frozen=True)
class TextTableConverter(TableConverter):
    """The column has a text. Keys are file and line, so an inserted line changes the keys of all later lines."""

    name = "text_table"
    transforms = False

    @property
    def schema(self) -> Schema:
        return Schema("text_table", {"text": _TEXT, **self.target.features})

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Accurate to a few bytes."""
        return _BYTES_AROUND + refs.columns["text_bytes"] + self._target_bytes(refs)

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter. data: the complete row. Raises RawDataError if its text changed since the scan."""
        try:
            text = self._text(ref, data)
        except (ValueError, IndexError):  # not a row any more
            text = None
        if text is None or zlib.crc32(text) != ref.columns["crc32"]:
            raise RawDataError(
                f"{ref.file.uri} changed during the conversion. Restore it, or run the same command again to scan the "
                "new version."
            )
        return Converted({"text": text, **self._target(ref)})

    def _text(self, ref: Reference, data: bytes) -> bytes:
        cells = parse_row(ref.file.uri, data, self.delimiter)
        cells = cells if isinstance(cells, dict) else {self.column: cells[ref.number("column_at")]}
        return text_cell(cells, self.column).encode()

    def _columns(self, row: TableRow, content: str) -> dict[str, int | bytes]:
        """crc32: so that a text changed in place on a disk, which has no checksums, changes the plan."""
        names = list(row.cells)
        text = content.encode()
        return {
            "column_at": names.index(self.column) if self.column in names else 0,
            "text_bytes": len(text),
            "crc32": zlib.crc32(text),
        }
