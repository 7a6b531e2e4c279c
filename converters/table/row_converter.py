"""Tables of any columns: each row becomes a record, each column a feature of the same name.

The rows are encoded once, to packed files, because a record's bytes cannot be found in tables of
every format. Pure: reads raw data through a Storage, returns values."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from beam_jobs.converter import Pack, Reject, Source
from beam_jobs.references import Reference, encoded
from converters.raw.batches import batches
from converters.raw.splits import HeldOut, is_of
from converters.table.columns import MOST_EXACT, Column, features_of, file_in, labels_of, rows_for
from converters.table.converter import find_image, is_below
from converters.table.held_out import class_of, group_of
from pipeline.errors import SchemaError
from pipeline.raw.cells import cell_of, text_cell
from pipeline.raw.image_files import CUT, NOTES, ToJpeg
from pipeline.raw.rows import Table, TableRow
from pipeline.shards.example import encode_example
from pipeline.shards.schema import USUAL_FORMAT, Labels, Schema, TableFormat, stated
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage

_WINDOW_BYTES = 10**6
_ROUNDED = f"numbers above {MOST_EXACT:,} that were rounded, because float32 holds 24 bits: {{}}"
_NOTES = (*NOTES, _ROUNDED)
_LEAST_ROW_BYTES = 250  # so that a window has at most 4,000 rows


@dataclass(frozen=True)
class RowConverter:
    """The converter of rows. See Packer. Keys are file and line, unless there is a key_column.

    image_format: "stored" keeps the pixels of lossless images, which may be labels; or "jpeg". The
    other fields are as of ImageTableConverter."""

    columns: tuple[Column, ...]
    key_column: str | None = None
    format: TableFormat = USUAL_FORMAT
    held_out: HeldOut | None = None
    to_jpeg: ToJpeg = field(default_factory=ToJpeg)
    name: str = "table"
    image_format: str = "stored"

    transforms = False
    worker_files = ()

    def core_seconds_per_gb(self, _name: str) -> float:
        """See Converter."""
        return 500  # measured on 14 short columns: 360 for csv, 710 for Parquet

    @property
    def schema(self) -> Schema:
        return Schema(self.name, features_of(self.columns), table=self.format)

    @property
    def labels(self) -> Labels | None:
        return labels_of(self.columns)

    @cached_property
    def class_names(self) -> Mapping[str, Sequence[str]]:
        """The class names of each category."""
        return {
            column.feature_key: column.names for column in self.columns if column.kind == "category"
        }

    def digest_fields(self) -> Mapping[str, Any]:
        return {
            "converter": f"rows/{5 if self.by_content else 4}",
            **asdict(self, dict_factory=stated),
            "held_out": self.held_out and self.held_out.stated,
        }

    @cached_property
    def by_content(self) -> bool:
        """Whether the content of a row decides which split it is in."""
        if not self.held_out or not any(self.held_out[:2]):
            return False
        return self.held_out.by == "content" or not (self.held_out.by or self.key_column)

    def files(self) -> Mapping[str, bytes]:
        return {}

    def windows(self, storage: Storage, source: Source) -> Iterator[Sequence[tuple[str, TableRow]]]:
        del storage
        stratified = bool(self.held_out and self.held_out.strata)
        rows_of_split = (
            (place, row)
            for place, row in self._keyed_rows(source)
            if is_of(
                source.split,
                self._decisive(place, row),
                self.held_out,
                class_of(self.columns, row) if stratified else "",
            )
        )
        return batches(
            rows_of_split, lambda each: max(each[1].size, _LEAST_ROW_BYTES), _WINDOW_BYTES
        )

    def stratified(self, sources: Sequence[Source]) -> "RowConverter":
        """The converter that holds out the same share of each class."""
        assert self.held_out
        tables = {source.uri: source for source in sources}.values()
        rows = (each for table in tables for each in self._keyed_rows(table))
        pairs = ((class_of(self.columns, row), self._decisive(place, row)) for place, row in rows)
        return replace(self, held_out=self.held_out.stratified(pairs))

    def _keyed_rows(self, source: Source) -> Iterator[tuple[str, TableRow]]:
        table = self._table(source)
        by = self.held_out and self.held_out.column
        for row in rows_for(table, self.columns, self.key_column, by):
            yield self._keyed(table, row)

    def _table(self, source: Source) -> Table:
        return Table(source.uri, self.format, source.tag)

    def _keyed(self, table: Table, row: TableRow) -> tuple[str, TableRow]:
        place = f"{table.name}:{row.line}"
        if not self.key_column or row.error:
            return place, row
        try:
            return text_cell(self.key_column, cell_of(row.cells, self.key_column)), row
        except ValueError as error:
            return place, row._replace(error=str(error))

    def _decisive(self, place: str, row: TableRow) -> str:
        """Returns what decides the split: the key; or the content, so that equal rows are in one
        split, and adding, moving or storing rows in other tables moves none."""
        if row.error or not self.held_out:
            return place
        return group_of(self.held_out, row, place, self.by_content, self._content)

    def _content(self, row: TableRow) -> str:
        return repr(sorted(column.content(row.cells, self.format) for column in self.columns))

    def pack(self, source: Source, number: int, window: Sequence[tuple[str, TableRow]]) -> Pack:
        del number  # keys are unique in the source
        noted = set[str]()
        file_of = partial(self._file_of, source, noted)
        word = "row" if self._table(source).is_arrow else "line"
        schema = self.schema
        keys = list[bytes]()
        payloads = list[bytes]()
        offsets = list[int]()
        columns: dict[str, list[int]] = {"notes": [], "_cut": [], "_more_rounded": []}
        floats = [column for column in self.columns if column.kind == "float32"]
        unusable = list[Reference]()
        for place, row in window:
            key = f"{source.split}/{place}"
            noted.clear()
            try:
                if row.error:
                    raise ValueError(row.error)
                values = {
                    column.feature_key: column.value(row.cells, file_of, self.format)
                    for column in self.columns
                }
                payloads.append(encode_example(schema, values))
                keys.append(encoded(key))
                offsets.append(row.offset)
                rounded = sum(
                    column.num_rounded(values[column.feature_key], row.cells, self.format)
                    for column in floats
                )
                if rounded:
                    noted.add(_ROUNDED)
                bits = (1 << _NOTES.index(note) for note in noted - {CUT})
                columns["notes"].append(sum(bits))
                columns["_cut"].append(CUT in noted)
                columns["_more_rounded"].append(max(rounded - 1, 0))
            except (ValueError, Reject, SchemaError) as e:
                error = f"{word} {row.line}: {e}"
                unusable.append(Reference(key, source.file, row.offset, 0, error, {}))
        arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
        sizes = np.array([*map(len, payloads)], np.int64)
        return Pack(keys, b"".join(payloads), sizes, np.array(offsets, np.int64), arrays, unusable)

    def _file_of(self, source: Source, noted: set[str], cell: Any, kind: str) -> bytes:
        """The file in a cell, or the one that it names; an image in the format to store. Adds what
        is noted of it. Raises ValueError, Reject, OptionError."""
        data = file_in(cell)
        if isinstance(data, str) and data:
            file = find_image(source.uri, data)
            # a table of others may name any file of this machine
            if kind == "file" and not is_below(source.uri.removesuffix(source.tag), file.uri):
                raise ValueError(f"the file {data!r:.60} is not below the raw data")
            data = open_storage(source.uri).read(file.uri)
        if not isinstance(data, bytes):
            raise ValueError(
                f"the {kind} is {data!r:.60}; it must be the path of a file, or its bytes"
            )
        if kind == "file":
            return data
        if self.image_format == "jpeg":
            image = self.to_jpeg(data)
            stored, notes = image.data, image.notes
        else:
            stored, notes = self.to_jpeg.stored(data)
        noted.update(notes)
        return stored

    def tally(self, columns: Mapping[str, np.ndarray]) -> tuple[Counter[str], Counter[str]]:
        """See Packer."""
        noted = columns["notes"]
        notes = Counter({note: int((noted >> i & 1).sum()) for i, note in enumerate(_NOTES)})
        notes[CUT] += int(columns["_cut"].sum())
        notes[_ROUNDED] += int(columns["_more_rounded"].sum())
        return +notes, Counter()
