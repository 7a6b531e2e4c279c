"""Tables of images: a row names an image, and has its labels or numbers.

A reference points to the image, so images are shuffled without being copied. `row_converter` converts all other tables.
Pure: reads raw data through a Storage, returns values."""

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import MAX_NAME_BYTES, File, Reference, References, bounded
from converters.images.image_records import IMAGE_FEATURES, image_features, member_error
from converters.raw.splits import is_of
from converters.raw.tars import Member
from converters.table.cells import cell_of, text_cell
from converters.table.columns import Column, features_of, labels_of, names_of, values_of
from pipeline.errors import StorageError
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import Jpeg
from pipeline.raw.rows import TableRow, place_of, table_rows
from pipeline.shards.example import encode_example
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.storage import Stat, Storage, in_parallel, join

_ROWS_PER_BATCH = 4096
_END = b"."  # of a target: NumPy drops the zeros at the end of bytes
# https://cloud.google.com/storage/docs/objects#naming; a bucket fails on other names, as if it could not be reached
_OBJECT = re.compile(r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9]/(?!\.{1,2}$)([^\r\n]+)")
_MAX_OBJECT_NAME_BYTES = 1024
_LABEL = "image/class/label"  # set by the target, if any
_FEATURES = {key: feature for key, feature in IMAGE_FEATURES.items() if key != _LABEL}


@dataclass(frozen=True)
class ImageTableConverter:
    """The converter of paths of images, absolute, relative to the table, or on gs://.

    Keys are the paths as written in the table, so they depend neither on the order of rows and tables nor on where the
    data is stored. An image listed twice is a duplicate, because it may have two labels; if that is intended, use
    another key_column.

    column: of the paths. target: the columns of labels or numbers. delimiter: of csv, None for the default.
    validation_fraction: None if each split has its own tables."""

    column: str
    target: tuple[Column, ...] = ()
    key_column: str | None = None
    delimiter: str | None = None
    validation_fraction: float | None = None
    to_jpeg: ToJpeg = field(default_factory=ToJpeg)

    name = "image_table"
    transforms = True
    worker_files = ()

    @property
    def schema(self) -> Schema:
        return Schema("image_table", _FEATURES | features_of(self.target))

    @cached_property
    def _target(self) -> Schema:
        return Schema("target", features_of(self.target))

    @property
    def labels(self) -> Labels | None:
        return labels_of(self.target)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without the fraction: the rows of a split already depend on it."""
        return {"converter": "table/3", **asdict(replace(self, validation_fraction=None))}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a table. On gs:// this makes one request per image, 32 at once."""
        names = names_of(self.target, self.column, self.key_column)
        found = (self._reference(source, row) for row in table_rows(storage, source.uri, self.delimiter, names))
        # Choose by the complete key: a shortened one depends on the split.
        mine = (
            (place, bounded(ref))
            for place, ref in found
            if is_of(source.split, ref.key.removeprefix(f"{source.split}/"), self.validation_fraction)
        )
        while batch := list(itertools.islice(mine, _ROWS_PER_BATCH)):
            yield References.of(in_parallel(lambda each: _at_image(storage, *each), batch))

    def _reference(self, source: Source, row: TableRow) -> tuple[str, Reference]:
        """The place of the row, and a reference to it."""
        key, error, image, target = f"{source.uri.rpartition('/')[2]}:{row.line}", row.error, "", b""
        try:
            if not error:
                image = self._image(row)
                target = encode_example(self._target, values_of(self.target, row.cells)) + _END
                key = text_cell(self.key_column, cell_of(row.cells, self.key_column)) if self.key_column else image
        except ValueError as e:
            error = str(e)
        columns, place = {"image": image.encode(), "target": target}, place_of(source.uri, row)
        error = error and f"{place}: {error}"
        return place, Reference(f"{source.split}/{key}", source.file, row.offset, row.size, error, columns)

    def _image(self, row: TableRow) -> str:
        name = text_cell(self.column, cell_of(row.cells, self.column))
        if len(name.encode()) > MAX_NAME_BYTES:  # for example an image in base64
            raise ValueError(f"{self.column!r} has {len(name):,} characters; it must be the path of an image")
        return name

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Accurate to a few bytes for images that stay as they are; for others, uses the size before."""
        name = np.char.str_len(np.char.rpartition(refs.columns["image"], b"/")[:, 2])
        return _BYTES_AROUND_IMAGE + refs.size + name + np.char.str_len(refs.columns["target"])

    def convert(self, ref: Reference, data: bytes) -> Converted:
        image, target = self.to_jpeg(data), decode_example(ref.text("target").removesuffix(_END))
        return Converted({**_image_features(image, ref.file.uri), **target}, image.fixups, image.notes)


def _image_features(image: Jpeg, uri: str) -> dict[str, bytes | int]:
    return {key: value for key, value in image_features(image, uri, 0).items() if key != _LABEL}


_BYTES_AROUND_IMAGE = len(encode_example(Schema("", _FEATURES), _image_features(Jpeg(b"", 300, 400), "")))


def _at_image(storage: Storage, place: str, ref: Reference) -> Reference:
    if ref.error:
        return ref
    file = find_image(storage, ref.file.uri, ref.text("image").decode())
    if isinstance(file, str):
        return replace(ref, error=f"{place}: {file}")
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
