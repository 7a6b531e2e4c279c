"""ImageNet (ILSVRC2012 classification): original tars -> records in tensorflow/tpu's schema.

Pure: reads raw data through a Storage, returns values. Labels are places in the sorted list of all classes, from 1
(0 is background), so a subset of the classes keeps its numbers; a validation image is bound to its label by the
number in its file name, never by its position in the tar."""

import bisect
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.references import File, Reference, References
from converters.jpeg import Verify, to_rgb_jpeg
from converters.tars import Member, TarError, members
from pipeline.shards.errors import LabelError, RawDataError, did_you_mean
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.storage import Storage, join

__all__ = ["SCHEMA", "SPLITS", "ImagenetConverter", "original_tars", "read_synsets"]

SPLITS = ("train", "validation")
TRAIN_TAR = "ILSVRC2012_img_train.tar"
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
VALIDATION_LABELS = "synset_labels.txt"
_LABEL_BASE = 1
_ROWS_PER_BATCH = 4096
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
        """See Converter."""
        return {
            "converter": "imagenet/1",
            "synsets": _digest(self.synsets),
            "validation_labels": _digest(self.validation_labels),
            "verify": self.verify,
        }

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a class tar inside the train tar, or the validation tar."""
        file = File(source.uri, source.file_bytes)
        rows: list[Reference] = []
        try:
            for member in members(storage, source.uri, source.offset, source.bytes):
                rows.append(self._reference(source, file, member))
                if len(rows) == _ROWS_PER_BATCH:
                    yield References.of(rows)
                    rows = []
        except TarError as e:  # a row for the rest of the tar: it is missing, and the ledger must say so
            key = f"{source.split}/{source.tag or VALIDATION_TAR}/"
            rows.append(self._row(key, file, source.offset, 0, source.tag, str(e)))
        if rows:
            yield References.of(rows)

    def _reference(self, source: Source, file: File, member: Member) -> Reference:
        name = member.name.rsplit("/", 1)[-1]
        error = ""
        if member.kind != "file":
            error = f"a {member.kind} in a tar, not a file"
        elif not member.size:
            error = "empty file"
        if source.split == "train":
            synset, key = source.tag, f"train/{source.tag}/{name}"
        else:
            synset, key = self._validation_synset(name), f"validation/{name}"
            error = error or ("" if synset else f"no label: {VALIDATION_LABELS} has none for this file name")
        return self._row(key, file, member.offset, member.size, synset, error)

    def _row(self, key: str, file: File, offset: int, size: int, synset: str, error: str) -> Reference:
        label = _LABEL_BASE + _position(self.synsets, synset) if synset and not error else 0
        return Reference(key, file, offset, size, error, {"label": label, "synset": synset.encode()})

    def _validation_synset(self, name: str) -> str:
        match = _VALIDATION_NAME.fullmatch(name)
        number = int(match[1]) if match else 0
        return self.validation_labels[number - 1] if 1 <= number <= len(self.validation_labels) else ""

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter: the record around the image is measured once, names are counted."""
        around = len(encode_example(SCHEMA, _features(b"", b"", b"", 300, 400, 300)))
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


def original_tars(
    storage: Storage, raw_data_dir: str, splits: Sequence[str], synsets: Sequence[str], verify: Verify
) -> tuple[ImagenetConverter, list[Source]]:
    """The converter and sources of a directory that holds the original tars.

    Raises RawDataError naming what is missing, LabelError naming a class that is not in the list."""
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist.")
    sources: list[Source] = []
    validation_labels: tuple[str, ...] = ()
    if "train" in splits:
        path = _required(storage, raw_data_dir, TRAIN_TAR)
        sources += _train_sources(storage, path, synsets)
        if not sources:
            raise RawDataError(f"{path} has no class tars in it. Is it the original train tar, fully copied?")
    if "validation" in splits:
        path = _required(storage, raw_data_dir, VALIDATION_TAR)
        size = storage.size(path)
        sources.append(Source("validation", path, size, 0, size))
        labels_path = _required(storage, raw_data_dir, VALIDATION_LABELS)
        validation_labels = tuple(storage.read(labels_path).decode().split())
        for line, synset in enumerate(validation_labels, start=1):
            _check_known(synset, synsets, f"line {line} of {labels_path}")
    return ImagenetConverter(tuple(synsets), validation_labels, verify), sources


def _required(storage: Storage, directory: str, name: str) -> str:
    path = join(directory, name)
    if not storage.exists(path):
        raise RawDataError(
            f"{path} does not exist. The original layout is {TRAIN_TAR}, {VALIDATION_TAR} and {VALIDATION_LABELS} "
            "(one synset a line: line n is validation image n) in one directory. --splits=train or "
            "--splits=validation converts one split alone."
        )
    return path


def _train_sources(storage: Storage, path: str, synsets: Sequence[str]) -> Iterator[Source]:
    file_bytes = storage.size(path)
    for member in members(storage, path, 0, file_bytes):
        synset = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
        _check_known(synset, synsets, f"member {member.name} of {path}")
        yield Source("train", path, file_bytes, member.offset, member.size, synset)


def read_synsets(storage: Storage, label_file: str) -> tuple[str, ...]:
    """The classes in a label file, sorted: the first word of each line. Raises LabelError on an empty or double one."""
    lines = storage.read(label_file).decode().splitlines()
    synsets = sorted(line.split()[0] for line in lines if line.strip())
    twice = sorted({a for a, b in itertools.pairwise(synsets) if a == b})
    if twice or not synsets:
        raise LabelError(f"{label_file}: {f'{twice[0]} stands there twice' if twice else 'there is no class in it'}.")
    return tuple(synsets)


def _check_known(synset: str, synsets: Sequence[str], where: str) -> None:
    if _position(synsets, synset) < 0:
        nearest = did_you_mean(synset, synsets) if len(synsets) <= 20 else ""
        raise LabelError(
            f"{where}: class {synset!r} is not in the label list ({len(synsets)} classes, {synsets[0]}..{synsets[-1]})."
            f"{nearest} Give the full list with --label_file."
        )


def _position(synsets: Sequence[str], synset: str) -> int:
    """The place in the sorted list, or -1."""
    position = bisect.bisect_left(synsets, synset)
    return position if position < len(synsets) and synsets[position] == synset else -1


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
