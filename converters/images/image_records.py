"""The image features of tensorflow/tpu's schema, and references to image files.

Converters of image files add the features of their classes. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from beam_jobs.rows.references import File, Reference, References, bounded, encoded
from converters.raw.tars import Member
from pipeline.raw.jpeg import Jpeg
from pipeline.shards.schema import Feature
from pipeline.storage.storage import Stat, Storage, join

_ROWS_PER_BATCH = 4096
# rows times the longest name and error: a column is as wide as its longest cell
_BYTES_PER_BATCH = 2**20
_MAX_FILE_BYTES = 512 * 1024**2  # a worker holds one file in memory; an Example may have 2 GiB
UNLABELLED: Mapping[str, Feature] = {
    "image/encoded": Feature("bytes", content="image", doc="the JPEG file"),
    "image/height": Feature("int64", doc="pixels"),
    "image/width": Feature("int64", doc="pixels"),
    "image/channels": Feature("int64", doc="always 3"),
    "image/colorspace": Feature("bytes", content="text", doc="always RGB"),
    "image/format": Feature("bytes", content="text", doc="always JPEG"),
    "image/filename": Feature("bytes", content="text", doc="base name in the raw data"),
}
IMAGE_FEATURES = {
    **UNLABELLED,
    "image/class/label": Feature("int64", doc="1..number of classes; 0 is background"),
}


def image_features(image: Jpeg, key: str) -> dict[str, bytes | int]:
    """A value for each of UNLABELLED. key: of the record; it ends with the base name of the
    file."""
    return {
        "image/encoded": image.data,
        "image/height": image.height,
        "image/width": image.width,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": encoded(key.rsplit("/", 1)[-1]),
    }


def predicted_bytes(around: int, refs: References, text: str | None) -> np.ndarray:
    """int64: the encoded size of each record if its image is not changed.

    around: bytes of a record with an empty image and empty names.
    text: a column whose text is in the record too, if any."""
    name = np.char.str_len(np.char.rpartition(refs.key, b"/")[:, 2])
    return around + refs.size + name + (np.char.str_len(refs.columns[text]) if text else 0)


def folder_members(storage: Storage, uri: str) -> Iterator[tuple[File, Member]]:
    """The files in a folder, and its folders as members of kind "folder"."""
    files, folders = storage.entries(uri)
    for name, stat in files.items():
        yield File(join(uri, name), stat), Member(name, 0, stat.bytes, "file")
    for name in folders:
        yield File(join(uri, name), Stat(0)), Member(name, 0, 0, "folder")


def member_error(member: Member) -> str:
    """Why a member cannot be an image, decided without reading it; "" if it may be one. Part of
    plan digests."""
    if member.kind != "file":
        return f"a {member.kind}, not a file"
    if not member.size:
        return "an empty file, or a link to none"
    if member.size > _MAX_FILE_BYTES:
        return f"a file of {member.size} bytes; at most {_MAX_FILE_BYTES:,} are read"
    return ""


def in_batches(rows: Iterable[Reference]) -> Iterator[References]:
    """Batches of up to 4,096 rows, or of fewer if long names would make them larger than about 1
    MiB.

    Each row is bounded first: a member of a tar may have a name of many megabytes."""
    batch: list[Reference] = []
    longest = 0
    for row in map(bounded, rows):
        length = len(row.key) + len(row.error)
        longest = max(longest, length)
        if batch and (
            len(batch) == _ROWS_PER_BATCH or (len(batch) + 1) * longest > _BYTES_PER_BATCH
        ):
            yield References.of(batch)
            batch = []
            longest = length
        batch.append(row)
    if batch:
        yield References.of(batch)
