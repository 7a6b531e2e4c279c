"""Tables that hold texts: records of a text and what the table says of it.

A reference is to the row in the table, which is read again when its record is written: texts are shuffled without being
held. Pure: reads raw data through a Storage, returns values."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from beam_jobs.converter import Converted
from beam_jobs.references import Reference, References
from converters.table import BYTES_AROUND_VALUE, TableConverter, text_in
from converters.table_rows import Row, parse_row
from pipeline.shards.errors import RawDataError
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.storage import Storage

__all__ = ["TextTableConverter"]

_TEXT = Feature("bytes", content="text", doc="UTF-8")
_BYTES_AROUND = 8 + len("text") + BYTES_AROUND_VALUE


@dataclass(frozen=True)
class TextTableConverter(TableConverter):
    """The column holds a text. A key is file and line, so a line put in before others gives these other places."""

    name = "text_table"
    transforms = False

    @property
    def schema(self) -> Schema:
        """See Converter."""
        return Schema("text_table", {"text": _TEXT, **self.target.features})

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter: right within a few bytes."""
        return _BYTES_AROUND + refs.columns["text_bytes"] + self._target_bytes(refs)

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter. data: the whole row. Raises RawDataError if it has not the text that was scanned."""
        try:
            text = self._text(ref, data)
        except (ValueError, IndexError):  # not even a row
            text = None
        if text is None or zlib.crc32(text) != ref.columns["crc32"]:
            raise RawDataError(f"{ref.file.uri} changed during the conversion. Put it back, or run again to scan it.")
        return Converted({"text": text, **self._target(ref)})

    def _text(self, ref: Reference, data: bytes) -> bytes:
        at = ref.columns["column_at"]
        assert isinstance(at, int)
        cells = parse_row(ref.file.uri, data, self.delimiter)
        row = Row(0, 0, 0, cells if isinstance(cells, dict) else {self.column: cells[at]})
        return text_in(row, self.column).encode()

    def _own_place(self, place: str, content: str) -> str:
        del content
        return place

    def _columns(self, row: Row, content: str) -> dict[str, int | bytes]:
        """crc32: a disk keeps no checksums, and a text that was changed in place is another plan."""
        names = list(row.cells)
        text = content.encode()
        return {
            "column_at": names.index(self.column) if self.column in names else 0,
            "text_bytes": len(text),
            "crc32": zlib.crc32(text),
        }

    def _located(self, storage: Storage, batch: Sequence[tuple[int, Reference]]) -> Sequence[Reference]:
        del storage
        return [ref for _, ref in batch]
