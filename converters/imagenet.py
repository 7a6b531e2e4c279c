"""ImageNet (ILSVRC2012 classification): raw images -> records in tensorflow/tpu's schema.

imagenet_layouts finds the images. Pure: reads raw data through a Storage, returns values. Labels are places in the
sorted list of all classes, from 1 (0 is background), so a subset of the classes keeps its numbers; a validation image
is bound to its label by the number in its file name, never by its position in a tar or folder."""

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import File, Reference, References
from converters.jpeg import Verify, to_rgb_jpeg
from converters.synsets import position
from converters.tars import Member, TarError, members
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["SCHEMA", "SPLITS", "VALIDATION_LABELS", "ImagenetConverter"]

SPLITS = ("train", "validation")
VALIDATION_LABELS = "synset_labels.txt"
_LABEL_BASE = 1
_ROWS_PER_BATCH = 4096
_MAX_FILE_BYTES = 512 * 1024**2  # a worker holds one file in memory; an Example may have 2 GiB
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")

SCHEMA = Schema(
    "tpu",
    {
        "image/encoded": Feature("bytes", content="image", doc="the JPEG file"),
        "image/height": Feature("int64", doc="pixels"),
        "image/width": Feature("int64", doc="pixels"),
        "image/channels": Feature("int64", doc="always 3"),
        "image/colorspace": Feature("bytes", content="text", doc="always RGB"),
        "image/format": Feature("bytes", content="text", doc="always JPEG"),
        "image/filename": Feature("bytes", content="text", doc="base name in the raw data"),
        "image/class/label": Feature("int64", doc="1..number of classes; 0 is background"),
        "image/class/synset": Feature("bytes", content="text", doc="WordNet id of the class"),
    },
)


@dataclass(frozen=True)
class ImagenetConverter:
    """synsets: all classes, sorted. validation_labels: the synset of validation image 1, 2, ... ."""

    synsets: tuple[str, ...]
    validation_labels: tuple[str, ...] = ()
    verify: Verify = "end"

    name = "imagenet2012"
    schema = SCHEMA

    @property
    def labels(self) -> Labels:
        """The label feature, and the synset of each number."""
        return Labels("image/class/label", _LABEL_BASE, self.synsets)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. The validation labels are not among them: each row has its own, and train has none."""
        synsets = hashlib.blake2b("\n".join(self.synsets).encode(), digest_size=16).hexdigest()
        return {"converter": "imagenet/1", "synsets": synsets, "verify": self.verify}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is one class, or all of validation; a tar or a folder."""
        rows: list[Reference] = []
        try:
            for file, member in _members(storage, source):
                rows.append(self._reference(source, file, member))
                if len(rows) == _ROWS_PER_BATCH:
                    yield References.of(rows)
                    rows = []
        except TarError as e:  # a row for the rest of the tar: it is missing, and the ledger must say so
            file = File(source.uri, source.stat)
            rows.append(
                self._row(
                    f"{source.split}/{source.tag or source.uri.rsplit('/')[-1]}/", file, source.offset, 0, "", str(e)
                )
            )
        if rows:
            yield References.of(rows)

    def _reference(self, source: Source, file: File, member: Member) -> Reference:
        name = member.name.rsplit("/", 1)[-1]
        error = ""
        if member.kind != "file":
            error = f"a {member.kind}, not a file"
        elif not 0 < member.size <= _MAX_FILE_BYTES:
            error = f"a file of {member.size} bytes; allowed are 1 to {_MAX_FILE_BYTES:,}"
        key = f"train/{source.tag}/{name}" if source.split == "train" else f"validation/{name}"
        synset = source.tag or self._validation_synset(name)
        if not synset:
            error = error or f"no label: {VALIDATION_LABELS} has none for this file name"
        return self._row(key, file, member.offset, member.size, synset, error)

    def _row(self, key: str, file: File, offset: int, size: int, synset: str, error: str) -> Reference:
        label = _LABEL_BASE + position(self.synsets, synset) if not error else 0
        return Reference(key, file, offset, size, error, {"label": label, "synset": synset.encode()})

    def _validation_synset(self, name: str) -> str:
        match = _VALIDATION_NAME.fullmatch(name)
        number = int(match[1]) if match else 0
        return self.validation_labels[number - 1] if 1 <= number <= len(self.validation_labels) else ""

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter: the record around the image is measured once, names are counted."""
        around = _bytes_around()
        name = np.char.str_len(np.char.rpartition(refs.key, b"/")[:, 2])
        return around + refs.size + name + np.char.str_len(refs.columns["synset"])

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter."""
        image = to_rgb_jpeg(data, self.verify)
        name = ref.key.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape")
        synset, label = ref.columns["synset"], ref.columns["label"]
        assert isinstance(synset, bytes)
        assert isinstance(label, int)
        return Converted(_features(image.data, name, synset, label, image.height, image.width), image.fixups)


def _members(storage: Storage, source: Source) -> Iterator[tuple[File, Member]]:
    if source.kind == "tar":
        file = File(source.uri, source.stat)
        return ((file, member) for member in members(storage, source.uri, source.offset, source.bytes))
    files, folders = storage.entries(source.uri)
    found = itertools.chain(
        ((Member(name, 0, stat.bytes, "file"), stat) for name, stat in files.items()),
        ((Member(name, 0, 0, "folder"), Stat(0)) for name in folders),
    )
    return ((File(join(source.uri, member.name), stat), member) for member, stat in found)


@functools.cache
def _bytes_around() -> int:
    return len(encode_example(SCHEMA, _features(b"", b"", b"", 300, 400, 300)))


def _features(
    encoded: bytes, name: bytes, synset: bytes, label: int, height: int, width: int
) -> dict[str, bytes | int]:
    return {
        "image/encoded": encoded,
        "image/height": height,
        "image/width": width,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": name,
        "image/class/label": label,
        "image/class/synset": synset,
    }
