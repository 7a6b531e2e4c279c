"""ImageNet (ILSVRC2012 classification): raw images -> records in tensorflow/tpu's schema, or in
TFDS's.

`layouts` finds the images. Pure: reads raw data through a Storage, returns values. A label is a
place in the sorted list of all classes, from 1 (0 is background), so a subset of the classes keeps
its numbers. The number in the file name of a validation image decides its label, never its position
in a tar or folder."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.rows.references import File, Reference, References
from converters.imagenet.boxes import BOX_BYTES, read_boxes
from converters.imagenet.records import FORMS, Form, FormName
from converters.images.image_records import (
    folder_members,
    in_batches,
    member_error,
    predicted_bytes,
)
from converters.raw.class_names import names_digest, position
from converters.raw.tars import Member, TarError, members
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import Jpeg, Verify, to_rgb_jpeg
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.storage import Storage

SPLITS = ("train", "validation")
VALIDATION_LABELS = "synset_labels.txt"
_LABEL_BASE = 1
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")


@dataclass(frozen=True)
class ImagenetConverter:
    """The converter of ImageNet. synsets: all classes, sorted. validation_labels: the synsets of
    validation images 1, 2, ... .

    words: a description of each synset, or (). box_tables: see `records`; () for records without
    boxes."""

    synsets: tuple[str, ...]
    validation_labels: tuple[str, ...] = ()
    verify: Verify = "end"
    words: tuple[str, ...] = ()
    form_name: FormName = "tpu"
    box_tables: tuple[str, ...] = ()
    restart_markers: bool = False

    name = "imagenet2012"

    def core_seconds_per_gb(self, _name: str) -> float:
        """See Converter."""
        return ToJpeg(self.verify, restart_markers=self.restart_markers).core_seconds_per_gb("")

    @property
    def transforms(self) -> bool:
        """See Converter. Without restart markers, only a few CMYK images change."""
        return self.restart_markers

    @property
    def worker_files(self) -> tuple[str, ...]:
        """Files that the scan reads in addition to its source."""
        return self.box_tables

    @property
    def form(self) -> Form:
        """The schema of the records, and how to fill it."""
        return FORMS[self.form_name]

    @property
    def schema(self) -> Schema:
        return self.form.schema

    @property
    def labels(self) -> Labels:
        return Labels(self.form.label_key, self.form.label_base, self.synsets)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without validation labels and boxes: the rows contain them."""
        synsets = names_digest((*self.synsets, "", *self.words))
        return {
            "converter": "imagenet/2",
            "synsets": synsets,
            "verify": self.verify,
            "restart_markers": self.restart_markers,
        }

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is one class or all of validation, in a tar or a folder."""
        return in_batches(self._rows(storage, source))

    def _rows(self, storage: Storage, source: Source) -> Iterator[Reference]:
        try:
            pairs = (
                folder_members(storage, source.uri)
                if source.kind == "folder"
                else (
                    (source.file, member)
                    for member in members(storage, source.uri, source.offset, source.bytes)
                )
            )
            for file, member in pairs:
                yield self._reference(source, file, member)
        except TarError as e:  # a bad record for the rest of the tar, which is missing
            key = f"{source.split}/{source.tag or source.uri.rsplit('/')[-1]}/"
            yield self._row(key, source.file, Member("", source.offset, 0, "file"), "", str(e))

    def _reference(self, source: Source, file: File, member: Member) -> Reference:
        name = member.name.rsplit("/", 1)[-1]
        error = member_error(member)
        key = f"train/{source.tag}/{name}" if source.split == "train" else f"validation/{name}"
        synset = source.tag or self._validation_synset(name)
        if not synset:
            error = error or f"no label: {VALIDATION_LABELS} has none for this file name"
        return self._row(key, file, member, synset, error)

    def _row(self, key: str, file: File, member: Member, synset: str, error: str) -> Reference:
        label = _LABEL_BASE + position(self.synsets, synset) if not error else 0
        columns: dict[str, int | bytes] = {"label": label, "synset": synset.encode()}
        if self.form.has_boxes:
            name = key.rsplit("/", 1)[-1].removesuffix(".JPEG")
            columns["boxes"] = read_boxes(self.box_tables).get(name, "").encode()
        return Reference(key, file, member.offset, member.size, error, columns)

    def _validation_synset(self, name: str) -> str:
        match = _VALIDATION_NAME.fullmatch(name)
        number = int(match[1]) if match else 0
        labels = self.validation_labels
        return labels[number - 1] if 1 <= number <= len(labels) else ""

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Exact except for boxes and the few bytes of length fields."""
        features, _ = self.form.features(Jpeg(b"", 300, 400), "", b"", 300)
        around = len(encode_example(self.schema, features))
        predicted = predicted_bytes(around, refs, None if self.form_name == "tfds" else "synset")
        if self.words and self.form_name != "tfds":
            words = np.array([0, *(len(words.encode()) for words in self.words)])
            predicted += words[refs.columns["label"]]
        if self.form.has_boxes:
            boxes = refs.columns["boxes"]
            predicted += BOX_BYTES * (np.char.count(boxes, b";") + (boxes != b""))
        return predicted

    def convert(self, ref: Reference, data: bytes) -> Converted:
        image = to_rgb_jpeg(data, self.verify)
        image = image.restarted() if self.restart_markers else image
        synset = ref.text("synset")
        label = ref.number("label")
        words = self.words[label - _LABEL_BASE] if self.words else ""
        boxes = ref.text("boxes").decode() if self.form.has_boxes else ""
        features, fixups = self.form.features(image, ref.key, synset, label, words, boxes)
        return Converted(features, (*image.fixups, *fixups), image.notes)
