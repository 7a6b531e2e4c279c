"""Tables (csv, tsv, jsonl) that name images or hold texts, and say something of each: rows -> records.

table_layouts finds the tables, table_rows reads their rows, targets says what can be said of a record; table_images and
table_texts are the two kinds of content. Pure: reads raw data through a Storage, returns values."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Source
from beam_jobs.references import File, Reference, References, bounded
from converters.table_rows import Row, table_rows
from converters.targets import Target
from converters.validation_share import is_validation
from pipeline.shards.example import Value
from pipeline.shards.schema import Labels
from pipeline.shards.storage import Storage

__all__ = ["BYTES_AROUND_VALUE", "TableConverter", "at_line", "text_in"]

BYTES_AROUND_VALUE = 11  # of a feature, beside key and value: tags and lengths
_ROWS_PER_BATCH = 4096


@dataclass(frozen=True)
class TableConverter:
    """What both kinds of content share.

    column: of the content. key_column: None for the kind's own keys. delimiter: of csv, None for the usual.
    validation_fraction: None where each split has tables of its own."""

    column: str
    target: Target
    key_column: str | None = None
    delimiter: str | None = None
    validation_fraction: float | None = None

    @property
    def labels(self) -> Labels | None:
        """See Converter."""
        return self.target.labels

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. The fraction is not among them: the rows of a split say who is in it."""
        columns = {"column": self.column, "key_column": self.key_column, "delimiter": self.delimiter}
        return {"converter": "table/2", **columns, **self.target.digest_fields()}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a table. Of its rows no more is kept than what a reference needs."""
        file = File(source.uri, source.stat)
        found = (self._reference(source.split, file, row) for row in table_rows(storage, source.uri, self.delimiter))
        # The choice goes by the whole key: a short one differs from split to split.
        chosen = ((line, bounded(row)) for line, row in found if self._is_of(source.split, row))
        while batch := list(itertools.islice(chosen, _ROWS_PER_BATCH)):
            yield References.of(self._located(storage, batch))

    def _is_of(self, split: str, row: Reference) -> bool:
        if self.validation_fraction is None:
            return True
        place = row.key.removeprefix(f"{split}/")
        return is_validation(place, self.validation_fraction) == (split == "validation")

    def _reference(self, split: str, file: File, row: Row) -> tuple[int, Reference]:
        """(its line, a reference to the row itself)."""
        place, error, content = f"{file.uri.rpartition('/')[2]}:{row.line}", row.error, ""
        numbers: Sequence[int | float] = ()
        try:
            if not error:
                content, numbers = self._content(row), self.target.numbers(row.cells)
                place = text_in(row, self.key_column) if self.key_column else self._own_place(place, content)
        except ValueError as e:
            error = str(e)
        columns = {"target": " ".join(map(repr, numbers)).encode(), **self._columns(row, content)}
        error = error and at_line(row.line, error)
        return row.line, Reference(f"{split}/{place}", file, row.offset, row.size, error, columns)

    def _target_bytes(self, refs: References) -> np.ndarray:
        """int64: what the target adds to each record, within a few bytes."""
        return self.target.sizes(refs.columns["target"]) + sum(
            len(key.encode()) + BYTES_AROUND_VALUE for key in self.target.features
        )

    def _target(self, ref: Reference) -> Mapping[str, Value]:
        """The features of the target."""
        numbers = ref.columns["target"]
        assert isinstance(numbers, bytes)
        return self.target.values(numbers.decode().split())

    def _content(self, row: Row) -> str:
        """The cell of the column. Raises ValueError."""
        return text_in(row, self.column)

    def _own_place(self, place: str, content: str) -> str:
        """The key without its split. place: file and line."""
        raise NotImplementedError

    def _columns(self, row: Row, content: str) -> dict[str, int | bytes]:
        """Of the reference, beside those of all tables."""
        raise NotImplementedError

    def _located(self, storage: Storage, batch: Sequence[tuple[int, Reference]]) -> Sequence[Reference]:
        """References to rows, with their lines, as references to what is to be read."""
        raise NotImplementedError


def at_line(line: int, error: str) -> str:
    """An error of a row, for the ledger."""
    return f"line {line}: {error}"


def text_in(row: Row, column: str) -> str:
    """A cell that must be text, or a JSON integer. Raises ValueError."""
    if column not in row.cells:
        raise ValueError(f"no {column!r} in it")
    cell = row.cells[column]
    text = str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else cell
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{column!r} is {cell!r:.60}; it must be text, without zero bytes and not empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{column!r} is {cell!r:.60}, which is not Unicode text") from None
    return text
