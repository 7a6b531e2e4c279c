"""Tables of images: a row names an image, and has its labels or numbers.

A reference points to the image, so images are shuffled without being copied. `row_converter`
converts all other tables. Pure: reads raw data through a Storage, returns values."""

import hashlib
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.rows.references import MAX_NAME_BYTES, File, Reference, References, bounded
from converters.images.image_records import UNLABELLED, image_features, member_error
from converters.raw.splits import HeldOut, is_of
from converters.raw.tars import Member
from converters.table.columns import Column, features_of, labels_of, needed_for
from converters.table.held_out import class_of, group_of
from converters.table.layouts import table_of
from pipeline.errors import StorageError
from pipeline.raw.cells import cell_of, text_cell
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import Jpeg
from pipeline.raw.rows import TableRow
from pipeline.shards.example import Value, encode_example
from pipeline.shards.schema import USUAL_FORMAT, Labels, Schema, TableFormat, stated
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, in_parallel, join

_ROWS_PER_BATCH = 4096
_BYTES_AROUND_VALUE = 11  # tags and lengths of a feature, without key and value
# https://cloud.google.com/storage/docs/objects#naming; a bucket fails on other names, as if it
# could not be reached
_OBJECT = re.compile(r"(?:gs|s3)://[a-z0-9][a-z0-9._-]+[a-z0-9]/(?!\.{1,2}$)([^\r\n]+)")
_MAX_OBJECT_NAME_BYTES = 1024


@dataclass(frozen=True)
class ImageTableConverter:
    """The converter of paths of images, absolute, relative to the table, or in a bucket.

    Keys are the paths as written in the table, so they depend neither on the order of rows and
    tables nor on where the data is stored. An image listed twice is a duplicate, because it may
    have two labels; if that is intended, use another key_column.

    column: of the paths. target: the columns of labels or numbers. held_out: None if each split has
    its own tables."""

    column: str
    target: tuple[Column, ...] = ()
    key_column: str | None = None
    format: TableFormat = USUAL_FORMAT
    held_out: HeldOut | None = None
    to_jpeg: ToJpeg = field(default_factory=ToJpeg)

    name = "image_table"
    transforms = True
    worker_files = ()

    @property
    def schema(self) -> Schema:
        features = {**UNLABELLED, **features_of(self.target)}
        return Schema("image_table", features, upright=self.to_jpeg.apply_orientation)

    def core_seconds_per_gb(self, name: str) -> float:
        """See Converter. A row of about 60 bytes names an image of about 60 KB, taken for a
        JPEG."""
        return 1000 * self.to_jpeg.core_seconds_per_gb(".jpg")

    @property
    def labels(self) -> Labels | None:
        return labels_of(self.target)

    def digest_fields(self) -> Mapping[str, Any]:
        return {
            "converter": "table/4",
            **asdict(self, dict_factory=stated),
            "held_out": self.held_out and self.held_out.stated,
        }

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a table. In a bucket this makes one request per image, 32 at
        once."""
        del storage
        rows_of_split = (
            (place, bounded(ref))
            for place, ref, *decisive in self._rows(source)
            if is_of(source.split, decisive[0], self.held_out, decisive[1])
        )
        while batch := list(itertools.islice(rows_of_split, _ROWS_PER_BATCH)):
            yield References.of(in_parallel(lambda each: _at_image(*each), batch))

    def stratified(self, sources: Sequence[Source]) -> "ImageTableConverter":
        """The converter that holds out the same share of each class."""
        assert self.held_out
        tables = {source.uri: source for source in sources}.values()
        pairs = ((each[3], each[2]) for table in tables for each in self._rows(table))
        return replace(self, held_out=self.held_out.stratified(pairs))

    def _rows(self, source: Source) -> Iterator[tuple[str, Reference, str, str]]:
        """The place of each row, a reference to it, what decides its split, and its class."""
        table = table_of(source, self.format)
        by = self.held_out and self.held_out.column
        rows = table.rows(*needed_for(self.target, self.column, self.key_column, by))
        several = in_parallel if self.held_out and self.held_out.by == "content" else map
        while batch := list(itertools.islice(rows, _ROWS_PER_BATCH)):
            yield from several(lambda row: self._row(source, row), batch)

    def _row(self, source: Source, row: TableRow) -> tuple[str, Reference, str, str]:
        place, ref = self._reference(source, row)
        # the complete key: a shortened one depends on the split
        group = ref.key.removeprefix(f"{source.split}/")
        if self.held_out and not ref.error:
            content = _digest(ref) if self.held_out.by == "content" else ""
            group = group_of(self.held_out, row.cells, group, content)
        return place, ref, group, class_of(self.target, row.cells)

    def _reference(self, source: Source, row: TableRow) -> tuple[str, Reference]:
        """The place of the row, and a reference to it."""
        key = f"{source.tag}:{row.line}"
        place = f"line {row.line}"
        error = image = target = ""
        try:
            if row.error:
                raise ValueError(row.error)
            image = self._image(row)
            target = " ".join(map(repr, self._numbers(row)))
            key = (
                text_cell(self.key_column, cell_of(row.cells, self.key_column))
                if self.key_column
                else image
            )
        except ValueError as e:
            error = f"{place}: {e}"  # part of plan digests
        columns = {"target": target.encode(), "image": image.encode()}
        return place, Reference(
            f"{source.split}/{key}", source.file, row.offset, row.size, error, columns
        )

    def _numbers(self, row: TableRow) -> Sequence[int | float]:
        if not self.target:
            return []
        value: Any = self.target[0].value(row.cells, bytes, self.format)
        if self.target[0].parts:
            return np.array(value, np.float32).tolist()
        return value if isinstance(value, list) else [value]

    def _values(self, numbers: Sequence[bytes]) -> dict[str, Value]:
        """The features of the target."""
        if not self.target:
            return {}
        first, *names = self.target
        values = [*map(float if first.parts else int, numbers)]
        named = {
            column.feature_key: column.names[int(values[0]) - column.base].encode()
            for column in names
        }
        return {first.feature_key: values if first.shape else values[0], **named}

    def _image(self, row: TableRow) -> str:
        name = text_cell(self.column, cell_of(row.cells, self.column))
        if len(name.encode()) > MAX_NAME_BYTES:  # for example an image in base64
            raise ValueError(
                f"{self.column!r} has {len(name):,} characters; it must be the path of an image"
            )
        return name

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Accurate to a few bytes for images that stay as they are; for others, uses
        the size before."""
        name = np.char.str_len(np.char.rpartition(refs.columns["image"], b"/")[:, 2])
        target = sum(
            len(column.feature_key.encode()) + _BYTES_AROUND_VALUE for column in self.target
        )
        return (
            _BYTES_AROUND_IMAGE
            + refs.size
            + name
            + target
            + self._value_bytes(refs.columns["target"])
        )

    def _value_bytes(self, numbers: np.ndarray) -> np.ndarray | int:
        """The predicted bytes of each row's target. Shards begin and end according to these sizes,
        so they must not change."""
        if not self.target:
            return 0
        first = self.target[0]
        if first.parts:
            return 4 * len(first.parts)
        if first.separator:
            # of the largest label
            varint_bytes = max(1, -(-(len(first.names) - 1).bit_length() // 7))
            return (np.char.count(numbers, b" ") + (numbers != b"")) * varint_bytes
        names = np.array([len(name.encode()) for name in first.names], np.int64)
        return names[
            np.where(numbers == b"", str(first.base).encode(), numbers).astype(np.int64)
            - first.base
        ]

    def convert(self, ref: Reference, data: bytes) -> Converted:
        image = self.to_jpeg(data)
        features = image_features(image, ref.file.uri) | self._values(ref.text("target").split())
        return Converted(features, image.fixups, image.notes)


_BYTES_AROUND_IMAGE = len(
    encode_example(Schema("", UNLABELLED), image_features(Jpeg(b"", 300, 400), ""))
)


def _digest(ref: Reference) -> str:
    """The digest of the image that a row names; "" if there is none."""
    try:
        file = find_image(ref.file.uri, ref.text("image").decode())
    except ValueError:
        return ""
    data = open_storage(file.uri).read(file.uri)
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _at_image(place: str, ref: Reference) -> Reference:
    if ref.error:
        return ref
    try:
        file = find_image(ref.file.uri, ref.text("image").decode())
    except ValueError as e:
        return replace(ref, error=f"{place}: {e}")
    return replace(ref, file=file, offset=0, size=file.stat.bytes)


def find_image(table: str, name: str) -> File:
    """The file of an image that a row of the table names. Raises ValueError if there is none to
    read, StorageError if a bucket cannot be reached."""
    storage = open_storage(table)
    uri = _absolute(table, name)
    try:
        stat = storage.stat(uri)
    except StorageError:
        if storage.remote and storage.exists(uri):
            raise
        # not the absolute path: errors are part of plan digests
        raise ValueError(f"no file {name!r} can be found") from None
    if error := member_error(Member(uri, 0, stat.bytes, "file")):
        raise ValueError(error)
    return File(uri, stat)


def is_below(directory: str, uri: str) -> bool:
    """Whether a file is in a directory or below it; on a disk, wherever links lead."""
    if is_remote(uri):
        return uri.startswith(join(directory, ""))
    return Path(uri).resolve().is_relative_to(Path(directory).resolve())


def _absolute(table: str, name: str) -> str:
    """The absolute path of an image in a table. Raises ValueError if it is not in the table's
    storage."""
    scheme, _, path = table.rpartition("://")
    if "://" in name or name.startswith("/"):
        if name.rpartition("://")[0] != scheme:
            raise ValueError(
                f"{name!r} is not in the storage that its table is in. Copy the table to the "
                "images."
            )
        uri = name
    else:
        uri = posixpath.normpath(join(posixpath.dirname(path) or ".", name))
        uri = f"{scheme}://{uri}" if scheme else uri
    match = _OBJECT.fullmatch(uri)
    if scheme and not (match and len(match[1].encode()) <= _MAX_OBJECT_NAME_BYTES):
        raise ValueError(f"{name!r} cannot be the name of a file in a bucket")
    return uri
