"""Tables of image paths: records in tensorflow/tpu's keys, with the labels or numbers of each image.

Pure: reads raw data through a Storage, returns values."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from beam_jobs.converter import Converted
from beam_jobs.references import MAX_NAME_BYTES, File, Reference, References
from converters.images.image_files import ToJpeg
from converters.images.image_records import IMAGE_FEATURES, image_features, member_error
from converters.images.jpeg import Jpeg
from converters.raw.tars import Member
from converters.table.cells import text_cell
from converters.table.converter import TableConverter
from converters.table.rows import TableRow
from pipeline.errors import StorageError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Schema
from pipeline.storage.storage import Stat, Storage, in_parallel, join

# https://cloud.google.com/storage/docs/objects#naming; a bucket fails on other names, as if it could not be reached
_OBJECT = re.compile(r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9]/(?!\.{1,2}$)([^\r\n]+)")
_MAX_OBJECT_NAME_BYTES = 1024
_LABEL = "image/class/label"  # set by the target, if any
_FEATURES = {key: feature for key, feature in IMAGE_FEATURES.items() if key != _LABEL}


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
        return _BYTES_AROUND + refs.size + name + self._target_bytes(refs)

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


_BYTES_AROUND = len(encode_example(Schema("", _FEATURES), _image_features(Jpeg(b"", 300, 400), "")))


def _at_image(storage: Storage, line: int, ref: Reference) -> Reference:
    if ref.error:
        return ref
    file = _find(storage, ref)
    if isinstance(file, str):
        return replace(ref, error=f"line {line}: {file}")
    return replace(ref, file=file, offset=0, size=file.stat.bytes)


def _find(storage: Storage, ref: Reference) -> File | str:
    """The file of the image, or the error."""
    name = ref.text("image").decode()
    try:
        uri = _absolute(ref.file.uri, name)
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
