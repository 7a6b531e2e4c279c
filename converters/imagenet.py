"""ImageNet (ILSVRC2012 classification): raw images -> records in tensorflow/tpu's schema.

imagenet_layouts finds the images. Pure: reads raw data through a Storage, returns values. Labels are places in the
sorted list of all classes, from 1 (0 is background), so a subset of the classes keeps its numbers; a validation image
is bound to its label by the number in its file name, never by its position in a tar or folder."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import File, Reference, References
from converters.image_records import (
    IMAGE_FEATURES,
    folder_members,
    image_features,
    in_batches,
    member_error,
    predicted_bytes,
)
from converters.jpeg import Jpeg, Verify, to_rgb_jpeg
from converters.synsets import position
from converters.tars import Member, TarError, members
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.storage import Storage

__all__ = ["SCHEMA", "SPLITS", "VALIDATION_LABELS", "ImagenetConverter"]

SPLITS = ("train", "validation")
VALIDATION_LABELS = "synset_labels.txt"
_LABEL_BASE = 1
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")

SCHEMA = Schema(
    "tpu",
    {**IMAGE_FEATURES, "image/class/synset": Feature("bytes", content="text", doc="WordNet id of the class")},
)


@dataclass(frozen=True)
class ImagenetConverter:
    """synsets: all classes, sorted. validation_labels: the synset of validation image 1, 2, ... ."""

    synsets: tuple[str, ...]
    validation_labels: tuple[str, ...] = ()
    verify: Verify = "end"

    name = "imagenet2012"
    schema = SCHEMA
    transforms = False  # but for a few CMYK images

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
        return in_batches(self._rows(storage, source))

    def _rows(self, storage: Storage, source: Source) -> Iterator[Reference]:
        try:
            for file, member in _members(storage, source):
                yield self._reference(source, file, member)
        except TarError as e:  # a row for the rest of the tar: it is missing, and the ledger must say so
            key = f"{source.split}/{source.tag or source.uri.rsplit('/')[-1]}/"
            yield self._row(key, File(source.uri, source.stat), source.offset, 0, "", str(e))

    def _reference(self, source: Source, file: File, member: Member) -> Reference:
        name = member.name.rsplit("/", 1)[-1]
        error = member_error(member)
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
        """See Converter."""
        return predicted_bytes(_BYTES_AROUND, refs, "synset")

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter."""
        image = to_rgb_jpeg(data, self.verify)
        synset, label = ref.columns["synset"], ref.columns["label"]
        assert isinstance(synset, bytes)
        assert isinstance(label, int)
        return Converted(_features(image, ref.key, synset, label), image.fixups)


def _members(storage: Storage, source: Source) -> Iterator[tuple[File, Member]]:
    if source.kind == "folder":
        return folder_members(storage, source.uri)
    file = File(source.uri, source.stat)
    return ((file, member) for member in members(storage, source.uri, source.offset, source.bytes))


def _features(image: Jpeg, key: str, synset: bytes, label: int) -> dict[str, bytes | int]:
    return {**image_features(image, key, label), "image/class/synset": synset}


_BYTES_AROUND = len(encode_example(SCHEMA, _features(Jpeg(b"", 300, 400), "", b"", 300)))
