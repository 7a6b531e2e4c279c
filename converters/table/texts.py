"""Tables of texts: records of a text with its labels or numbers.

A reference points to the row in the table, which is read again to write the record: so texts are shuffled without
staying in memory. Pure: reads raw data through a Storage, returns values."""

import zlib
from dataclasses import dataclass

import numpy as np

from beam_jobs.converter import Converted
from beam_jobs.references import Reference, References
from converters.table.cells import text_cell
from converters.table.converter import BYTES_AROUND_VALUE, TableConverter
from converters.table.rows import Row, parse_row
from pipeline.errors import RawDataError
from pipeline.shards.schema import Feature, Schema

__all__ = ["TextTableConverter"]

_TEXT = Feature("bytes", content="text", doc="UTF-8")
_BYTES_AROUND = 8 + len("text") + BYTES_AROUND_VALUE


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

    def _columns(self, row: Row, content: str) -> dict[str, int | bytes]:
        """crc32: so that a text changed in place on a disk, which has no checksums, changes the plan."""
        names = list(row.cells)
        text = content.encode()
        return {
            "column_at": names.index(self.column) if self.column in names else 0,
            "text_bytes": len(text),
            "crc32": zlib.crc32(text),
        }
