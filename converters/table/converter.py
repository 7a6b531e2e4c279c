"""Tables (csv, tsv, jsonl) of images or texts, with labels or numbers: the shared part of their converters.

`layouts` finds the tables, `rows` reads their rows, `targets` has the kinds of labels and numbers; `images` and `texts`
have the two kinds of content. Pure: reads raw data through a Storage, returns values."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Source
from beam_jobs.references import File, Reference, References, bounded
from converters.raw.validation_share import is_validation
from converters.table.cells import text_cell
from converters.table.rows import Row, table_rows
from converters.table.targets import Target
from pipeline.shards.example import Value
from pipeline.shards.schema import Labels
from pipeline.storage.storage import Storage

__all__ = ["BYTES_AROUND_VALUE", "TableConverter"]

BYTES_AROUND_VALUE = 11  # tags and lengths of a feature, without key and value
_ROWS_PER_BATCH = 4096


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
        if self.validation_fraction is None:
            return True
        place = row.key.removeprefix(f"{split}/")
        return is_validation(place, self.validation_fraction) == (split == "validation")

    def _reference(self, split: str, file: File, row: Row) -> tuple[int, Reference]:
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
            len(key.encode()) + BYTES_AROUND_VALUE for key in self.target.features
        )

    def _target(self, ref: Reference) -> Mapping[str, Value]:
        """A value for each feature of the target."""
        return self.target.values(ref.text("target").decode().split())

    def _content(self, row: Row) -> str:
        """The content of a row. Raises ValueError."""
        return text_cell(row.cells, self.column)

    def _columns(self, row: Row, content: str) -> dict[str, int | bytes]:
        """Columns of the reference in addition to "target"."""
        raise NotImplementedError

    def _located(self, storage: Storage, batch: Sequence[tuple[int, Reference]]) -> Sequence[Reference]:
        """References to what `convert` reads, from the lines of rows and references to rows."""
        del storage
        return [ref for _, ref in batch]
