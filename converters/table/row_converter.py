"""Tables of any columns: each row becomes a record, each column a feature of the same name.

The rows are encoded once, block by block, to packed files, because a record's bytes cannot be found
in tables of every format. Pure: reads raw data through a Storage, returns values."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from beam_jobs.converter import Pack, Source
from beam_jobs.rows.references import Reference, encoded
from converters.raw.splits import HeldOut
from converters.table.block_values import contents_of, values_of
from converters.table.columns import (
    OF_FILES,
    ROUNDED,
    Column,
    features_of,
    file_in,
    labels_of,
    needed_for,
)
from converters.table.converter import find_image, is_below
from converters.table.held_out import class_of, group_of
from converters.table.layouts import table_of
from converters.table.records import records_of
from pipeline.raw.block import Block
from pipeline.raw.blocks import blocks_of
from pipeline.raw.image_files import CUT, NOTES, ToJpeg
from pipeline.raw.pieces import WHOLE
from pipeline.shards.schema import USUAL_FORMAT, Labels, Schema, TableFormat, stated
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage

_NOTES = (*NOTES, CUT)
_ROWS_AT_ONCE = 1 << 14  # a window is several times in memory; batches of Parquet have up to 10^6
_FILES_AT_ONCE = 64  # rows that name images, or have them: the files are in memory together


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
        return 300  # measured: 60 for csv of 80 floats, 360 for one of 6 short columns

    @property
    def schema(self) -> Schema:
        features = features_of(self.columns)
        upright = self.to_jpeg.apply_orientation
        return Schema(self.name, features, table=self.format, upright=upright)

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

    def windows(self, storage: Storage, source: Source) -> Iterator[Block]:
        del storage
        has_files = any(column.kind in OF_FILES for column in self.columns)
        most = _FILES_AT_ONCE if has_files else _ROWS_AT_ONCE
        for block in self._blocks(source):
            for begin in range(0, len(block), most):
                rows = np.arange(begin, min(begin + most, len(block)))
                yield block if len(rows) == len(block) else block.take(rows)

    def _blocks(self, source: Source) -> Iterator[Block]:
        by = self.held_out and self.held_out.column
        needed = needed_for(self.columns, self.key_column, by)
        return blocks_of(table_of(source, self.format), *needed, source.piece or WHOLE)

    def stratified(self, sources: Sequence[Source]) -> "RowConverter":
        """The converter that holds out the same share of each class."""
        assert self.held_out
        tables = {source.uri: source for source in sources}.values()
        blocks = ((table, block) for table in tables for block in self._blocks(table))
        groups = (pair for table, block in blocks for pair in self._groups(table, block, True))
        return replace(self, held_out=self.held_out.stratified(groups))

    def _groups(self, source: Source, block: Block, has_classes: bool) -> Iterator[tuple[str, str]]:
        """The class of each row, if classes matter, and what decides its split: the key; or the
        content, so that equal rows are in one split, and adding, moving or storing rows in other
        tables moves none."""
        held_out = self.held_out
        assert held_out
        keys, errors = self._keys(source, block)
        none = [""] * len(block)
        contents = contents_of(self.columns, block, self.format) if self.by_content else none
        classes = [column.name for column in self.columns if column.required] * has_classes
        rows = block.by_row([*classes, *filter(None, [held_out.column])])
        for row, (key, content, cells) in enumerate(zip(keys, contents, rows, strict=True)):
            if row in errors:
                yield "", key
                continue
            stratum = class_of(self.columns, cells) if has_classes else ""
            yield stratum, group_of(held_out, cells, key, content)

    def _keys(self, source: Source, block: Block) -> tuple[list[str], dict[int, str]]:
        """The key of each row in its split, and the errors of those that cannot be read."""
        name = table_of(source, self.format).name
        keys = [f"{name}:{line}" for line in block.line.tolist()]
        errors = {**block.errors}
        if self.key_column:
            column = Column(self.key_column, "text", required=True)
            values, _ = values_of(column, block, self.format, errors, lambda *_: b"")
            texts = values.to_pylist()
            keys = [key if row in errors else texts[row].decode() for row, key in enumerate(keys)]
        return keys, errors

    def pack(self, source: Source, number: int, window: Block) -> Pack:
        del number  # keys are unique in the source
        if self.held_out:
            groups = self._groups(source, window, bool(self.held_out.strata))
            splits = [self.held_out.split_of(group, stratum) for stratum, group in groups]
            window = window.take(np.flatnonzero(np.array(splits, object) == source.split))
        places, errors = self._keys(source, window)
        keys = [f"{source.split}/{place}" for place in places]
        noted = np.zeros(len(window), np.int64)
        file_of = partial(self._file_of, source, noted)
        records = records_of(self.columns, self.schema, window, errors, file_of)
        offsets = window.offset.tolist()
        word = "row" if table_of(source, self.format).is_arrow else "line"
        unusable = [
            Reference(
                keys[row], source.file, offsets[row], 0, f"{word} {window.line[row]}: {error}", {}
            )
            for row, error in sorted(errors.items())
        ]
        rows = records.rows
        columns = {"notes": noted[rows], "rounded": records.rounded}
        good_keys = [encoded(keys[row]) for row in rows.tolist()]
        return Pack(good_keys, records.data, records.sizes, window.offset[rows], columns, unusable)

    def _file_of(self, source: Source, noted: np.ndarray, row: int, cell: Any, kind: str) -> bytes:
        """The file in a cell, or the one that it names; an image in the format to store. Sets the
        bits of notes on the row. Raises ValueError, Reject, OptionError."""
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
        for note in notes:
            noted[row] |= 1 << _NOTES.index(note)
        return stored

    def tally(self, columns: Mapping[str, np.ndarray]) -> tuple[Counter[str], Counter[str]]:
        """See Packer."""
        noted = columns["notes"]
        notes = Counter({note: int((noted >> i & 1).sum()) for i, note in enumerate(_NOTES)})
        notes[ROUNDED] += int(columns["rounded"].sum())
        return +notes, Counter()
