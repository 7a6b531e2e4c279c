"""Tables (csv, tsv, jsonl): the converters of texts and of image paths, and their base.

`layouts` finds the tables, `rows` reads their rows, `targets` has the kinds of labels and numbers. A reference to a
text points to its row in the table, which is read again to write the record: so texts are shuffled without staying in
memory. Pure: reads raw data through a Storage, returns values."""

import itertools
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import MAX_NAME_BYTES, File, Reference, References, bounded
from converters.images.image_records import IMAGE_FEATURES, image_features, member_error
from converters.raw.splits import is_of
from converters.raw.tars import Member
from converters.table.cells import text_cell
from converters.table.targets import Target
from pipeline.errors import RawDataError, StorageError
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import Jpeg
from pipeline.raw.rows import TableRow, parse_row, table_rows
from pipeline.shards.example import Value, encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.storage import Stat, Storage, in_parallel, join

_BYTES_AROUND_VALUE = 11  # tags and lengths of a feature, without key and value
_ROWS_PER_BATCH = 4096
_TEXT = Feature("bytes", content="text", doc="UTF-8")
_BYTES_AROUND = 8 + len("text") + _BYTES_AROUND_VALUE
# https://cloud.google.com/storage/docs/objects#naming; a bucket fails on other names, as if it could not be reached
_OBJECT = re.compile(r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9]/(?!\.{1,2}$)([^\r\n]+)")
_MAX_OBJECT_NAME_BYTES = 1024
_LABEL = "image/class/label"  # set by the target, if any
_FEATURES = {key: feature for key, feature in IMAGE_FEATURES.items() if key != _LABEL}


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


@dataclass(frozen=True)
class ImageTableConverter(TableConverter):
    """The column has paths of images, absolute, relative to the table, or on gs://.

    Keys are the paths as written in the table, so they depend neither on the order of rows and tables nor on where the
    data is stored. An image listed twice is a duplicate, because it may have two labels; if that is intended, use
    another key_column."""

    to_jpeg: ToJpeg = field(default_factory=ToJpeg)

    name = "image_table"
    transforms = True
    _content_is_key = True

    @property
    def schema(self) -> Schema:
        return Schema("image_table", {**_FEATURES, **self.target.features})

    def digest_fields(self) -> Mapping[str, Any]:
        return {**super().digest_fields(), **asdict(self.to_jpeg)}

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Accurate to a few bytes for images that stay as they are; for others, uses the size before."""
        name = np.char.str_len(np.char.rpartition(refs.columns["image"], b"/")[:, 2])
        return _BYTES_AROUND_IMAGE + refs.size + name + self._target_bytes(refs)

    def convert(self, ref: Reference, data: bytes) -> Converted:
        image = self.to_jpeg(data)
        return Converted({**_image_features(image, ref.file.uri), **self._target(ref)}, image.fixups, image.notes)

    def _content(self, row: TableRow) -> str:
        name = text_cell(row.cells, self.column)
        if len(name.encode()) > MAX_NAME_BYTES:  # for example an image in base64
            raise ValueError(f"{self.column!r} has {len(name):,} characters; it must be the path of an image")
        return name

    def _columns(self, row: TableRow, content: str) -> dict[str, int | bytes]:
        del row
        return {"image": content.encode()}

    def _located(self, storage: Storage, batch: Sequence[tuple[int, Reference]]) -> Sequence[Reference]:
        """References to the images. On gs:// this makes one request per image, 32 at once."""
        return in_parallel(lambda found: _at_image(storage, *found), batch)


def _image_features(image: Jpeg, uri: str) -> dict[str, bytes | int]:
    return {key: value for key, value in image_features(image, uri, 0).items() if key != _LABEL}


_BYTES_AROUND_IMAGE = len(encode_example(Schema("", _FEATURES), _image_features(Jpeg(b"", 300, 400), "")))


def _at_image(storage: Storage, line: int, ref: Reference) -> Reference:
    if ref.error:
        return ref
    file = find_image(storage, ref.file.uri, ref.text("image").decode())
    if isinstance(file, str):
        return replace(ref, error=f"line {line}: {file}")
    return replace(ref, file=file, offset=0, size=file.stat.bytes)


def find_image(storage: Storage, table: str, name: str) -> File | str:
    """The file of an image that a row of the table names, or the error."""
    try:
        uri = _absolute(table, name)
    except ValueError as e:
        return str(e)
    stat = _stat(storage, uri)
    if stat is None:
        return f"no file {name!r} can be found"  # not the absolute path: errors are part of plan digests
    return member_error(Member(uri, 0, stat.bytes, "file")) or File(uri, stat)


def _absolute(table: str, name: str) -> str:
    """The absolute path of an image in a table. Raises ValueError if it is not in the table's storage."""
    scheme, _, path = table.rpartition("://")
    if "://" in name or name.startswith("/"):
        if name.rpartition("://")[0] != scheme:
            raise ValueError(f"{name!r} is not in the storage that its table is in. Copy the table to the images.")
        uri = name
    else:
        beside = posixpath.normpath(join(posixpath.dirname(path) or ".", name))
        uri = f"{scheme}://{beside}" if scheme else beside
    found = _OBJECT.fullmatch(uri)
    if scheme and not (found and len(found[1].encode()) <= _MAX_OBJECT_NAME_BYTES):
        raise ValueError(f"{name!r} cannot be the name of a file in a bucket")
    return uri


def _stat(storage: Storage, uri: str) -> Stat | None:
    """None if there is no such file. Raises StorageError if a bucket cannot be reached."""
    try:
        return storage.stat(uri)
    except StorageError:
        if storage.remote and storage.exists(uri):
            raise
        return None
