"""CIFAR-10 and CIFAR-100 in their binary versions: 32x32 RGB images as raw pixels, each after its
label.

    CIFAR-10     data_batch_1.bin ... data_batch_5.bin, test_batch.bin, batches.meta.txt
    CIFAR-100    train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt

in the archive as downloaded, in the folder it unpacks to, or in the directory itself. The names of
the files show which of the two it is. Python and Matlab versions are refused: unpickling runs code.
Labels are the numbers in the raw data, from 0. https://www.cs.toronto.edu/~kriz/cifar.html"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Source
from beam_jobs.rows.references import File, Reference, References
from beam_jobs.scratch import Scratch, readable
from converters.images.image_records import folder_members
from converters.pixels.records import pixel_features, pixel_rows, pixel_values
from converters.raw.class_names import label_text, names_digest, parse_class_names
from converters.raw.files import first_few, open_raw_data
from converters.raw.tars import Member, members
from pipeline.errors import LabelError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join

SPLITS = ("train", "test")
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_MAX_NAMES_BYTES = 1 << 20
_SIDE = 32
_PIXEL_BYTES = 3 * _SIDE * _SIDE  # all red values, then green, then blue
_RECORDS_PER_BATCH = 1024  # 3 MB

CIFAR10 = Schema("cifar10", pixel_features(3))
CIFAR100 = Schema(
    "cifar100",
    {
        **pixel_features(3),
        "image/class/coarse_label": Feature(
            "int64", doc="0..number of coarse classes - 1, as in the raw data"
        ),
        "image/class/coarse_text": Feature("bytes", content="text", doc="name of the coarse class"),
    },
)

_Files = Mapping[str, tuple[File, Member]]


@dataclass(frozen=True)
class _Version:
    """CIFAR-10 or CIFAR-100."""

    places: tuple[str, ...]  # archives and their folder, the first that exists is read
    batches: Mapping[str, Sequence[str]]  # the files of each split
    # files of class names, those of the label first, and the number of names in each
    names: Mapping[str, int]


_VERSIONS = (
    _Version(
        ("cifar-10-batches-bin", "cifar-10-binary.tar", "cifar-10-binary.tar.gz"),
        {
            "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
            "test": ["test_batch.bin"],
        },
        {"batches.meta.txt": 10},
    ),
    _Version(
        ("cifar-100-binary", "cifar-100-binary.tar", "cifar-100-binary.tar.gz"),
        {"train": ["train.bin"], "test": ["test.bin"]},
        {"fine_label_names.txt": 100, "coarse_label_names.txt": 20},
    ),
)


def find_cifar(
    raw_data_dir: str, splits: Sequence[str], scratch: Scratch | None
) -> tuple["CifarConverter", Sequence[Source]]:
    """The converter, and the sources of the chosen splits, or of all splits that exist.

    scratch: for a .tar.gz, None forbids writing. Raises RawDataError if files are missing or
    damaged, OptionError."""
    storage = open_raw_data(raw_data_dir)
    place = _place(storage, raw_data_dir)
    tar = readable(place, scratch) if place.endswith((".tar", ".tar.gz")) else None
    storage = open_storage(tar.uri) if tar else storage
    files = _files(storage, place, tar)
    version = _version(files, place)
    converter = CifarConverter(
        *(_names(storage, files, name, count, place) for name, count in version.names.items())
    )
    record_bytes = converter.label_bytes + _PIXEL_BYTES
    sources: list[Source] = []
    for split in splits or SPLITS:
        batches = version.batches[split]
        _check_complete(files, split, batches, place)
        for name in batches:
            file, member = files[name]
            if member.kind != "file" or not member.size or member.size % record_bytes:
                raise RawDataError(
                    f"{name} of {file.uri} is a {member.kind} of {member.size} bytes; it must be a "
                    f"file of complete records of {record_bytes} bytes. It was not fully copied, "
                    "or is damaged: unpack or copy it again."
                )
            part = {"offset": member.offset, "bytes": member.size, "tag": name, "kind": "file"}
            sources.append(replace(tar or Source("", file.uri, file.stat), split=split, **part))
    return converter, sources


def _place(storage: Storage, raw_data_dir: str) -> str:
    """The path of the archive, or of the folder with the files."""
    files, folders = storage.entries(raw_data_dir)
    names = {*files, *folders}
    if any(name in files for v in _VERSIONS for batches in v.batches.values() for name in batches):
        return raw_data_dir
    places = list[str]()
    for version in _VERSIONS:
        places += [name for name in version.places if name in names][:1]
    if len(places) > 1:
        raise RawDataError(
            f"{raw_data_dir} has {places[0]} and {places[1]}. Give a directory with only one of "
            "them."
        )
    if places:
        return join(raw_data_dir, places[0])
    raise RawDataError(
        f"{raw_data_dir} has none of {', '.join(name for v in _VERSIONS for name in v.places)}, "
        f"and no .bin files: the binary version of {_PAGE}. It has: {first_few(sorted(names))}."
    )


def _files(storage: Storage, place: str, tar: Source | None) -> _Files:
    """The files by base name: their folders in a tar do not matter."""
    if tar is None:
        return {member.name: (file, member) for file, member in folder_members(storage, place)}
    return {
        member.name.rsplit("/", 1)[-1]: (tar.file, member)
        for member in members(storage, tar.uri, 0, tar.bytes)
    }


def _version(files: _Files, place: str) -> _Version:
    for version in _VERSIONS:
        if any(name in files for batches in version.batches.values() for name in batches):
            return version
    raise RawDataError(
        f"{place} has no data_batch_1.bin or test_batch.bin (CIFAR-10), and no train.bin or "
        f"test.bin (CIFAR-100). It has: {first_few(sorted(files))}."
    )


def _check_complete(files: _Files, split: str, batches: Sequence[str], place: str) -> None:
    missing = [name for name in batches if name not in files]
    if len(missing) == len(batches):
        raise RawDataError(
            f"{place} does not have the {split} split. It has: {first_few(sorted(files))}."
        )
    if missing:
        raise RawDataError(
            f"{place}: {len(missing)} of {len(batches)} files of {split!r} are missing: "
            f"{', '.join(missing)}. Unpack the archive again."
        )


def _names(storage: Storage, files: _Files, name: str, count: int, place: str) -> tuple[str, ...]:
    if name not in files:
        raise LabelError(
            f"{place} has no {name}, the names of the {count} classes. Unpack the archive again."
        )
    file, member = files[name]
    where = f"{name} of {place}"
    size = min(member.size, _MAX_NAMES_BYTES)
    (data,) = storage.read_ranges([(file.uri, member.offset, size)])
    names = parse_class_names(label_text(data, where), where)
    if len(names) != count:
        raise LabelError(f"{where} has {len(names)} class names, expected {count}. It is damaged.")
    return names


@dataclass(frozen=True)
class CifarConverter:
    """The converter of CIFAR. names: of the classes 0, 1, ...; coarse_names: the 20 of CIFAR-100,
    () for CIFAR-10."""

    names: tuple[str, ...]
    coarse_names: tuple[str, ...] = ()

    transforms = True
    worker_files = ()

    def core_seconds_per_gb(self, _name: str) -> float:
        """See Converter."""
        return 70  # measured

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def schema(self) -> Schema:
        return CIFAR100 if self.coarse_names else CIFAR10

    @property
    def labels(self) -> Labels:
        return Labels("image/class/label", 0, self.names)

    def digest_fields(self) -> Mapping[str, Any]:
        names = {"names": names_digest(self.names), "coarse_names": names_digest(self.coarse_names)}
        return {"converter": "cifar/1", **names}

    @property
    def label_bytes(self) -> int:
        """Bytes before each image: the coarse label of CIFAR-100, then the label."""
        return 2 if self.coarse_names else 1

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a .bin file, or its byte range in a tar; its tag is the name
        of the file.

        Reads all bytes, 3 MB at a time: the labels are between the pixels."""
        size = self.label_bytes + _PIXEL_BYTES
        firsts = range(0, source.bytes // size, _RECORDS_PER_BATCH)
        pieces = storage.read_ranges(
            (
                source.uri,
                source.offset + first * size,
                min(_RECORDS_PER_BATCH * size, source.bytes - first * size),
            )
            for first in firsts
        )
        for first, piece in zip(firsts, pieces, strict=True):
            yield self._rows(
                source,
                first,
                np.frombuffer(piece, np.uint8).reshape(-1, size)[:, : self.label_bytes],
            )

    def _rows(self, source: Source, first: int, labels: np.ndarray) -> References:
        columns = {"label": labels[:, -1].astype(np.int64)}
        if self.coarse_names:
            columns["coarse_label"] = labels[:, 0].astype(np.int64)
        stem = f"{source.split}/{source.tag.removesuffix('.bin')}_"
        numbers = np.arange(first, first + len(labels))
        ranges = (source.offset, self.label_bytes + _PIXEL_BYTES)
        refs = pixel_rows(
            source.file, stem, numbers, ranges, columns=columns, classes=len(self.names)
        )
        if not self.coarse_names:
            return refs
        unknown = (columns["coarse_label"] >= len(self.coarse_names)) & refs.good
        return refs.with_errors(
            unknown, f"a coarse label past the last, {len(self.coarse_names) - 1}"
        )

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Assumes PNGs as large as their pixels."""
        return _BYTES_AROUND + refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        pixels = (
            np.frombuffer(data, np.uint8)[self.label_bytes :]
            .reshape(3, _SIDE, _SIDE)
            .transpose(1, 2, 0)
        )
        label = ref.number("label")
        values = pixel_values(pixels, ref.key, label, self.names[label])
        if self.coarse_names:
            coarse = ref.number("coarse_label")
            values["image/class/coarse_label"] = coarse
            values["image/class/coarse_text"] = self.coarse_names[coarse].encode()
        return Converted(values)


_BYTES_AROUND = len(
    encode_example(
        CIFAR10,
        pixel_values(np.zeros((_SIDE, _SIDE, 3), np.uint8), "data_batch_1_0000000.png", 0, "0" * 8),
    )
)
