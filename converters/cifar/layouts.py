"""Finds the files of CIFAR: in the archive as downloaded, in the folder it unpacks to, or in the directory itself.

    CIFAR-10     data_batch_1.bin ... data_batch_5.bin, test_batch.bin, batches.meta.txt
    CIFAR-100    train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt

The names of the files show which of the two it is. Python and Matlab versions are refused: unpickling runs code."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.references import File
from beam_jobs.scratch import Scratch
from converters.cifar.converter import PIXEL_BYTES
from converters.images.image_records import folder_members
from converters.raw.class_names import parse_class_names
from converters.raw.compressed import Readable, by_suffix, readable
from converters.raw.raw_directory import first_few, open_raw_data
from converters.raw.tars import Member, members
from pipeline.errors import LabelError, RawDataError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join

__all__ = ["SPLITS", "RawCifar", "find_cifar"]

SPLITS = ("train", "test")
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_MAX_NAMES_BYTES = 1 << 20
_OTHER_VERSION = re.compile(
    r"cifar-(10|100)-(python|matlab|batches-py|batches-mat)(\.tar\.gz|\.tar)?|(data_batch_\d|batches\.meta|meta)(\.mat)?"
)

_Files = Mapping[str, tuple[File, Member]]


@dataclass(frozen=True)
class _Version:
    """CIFAR-10 or CIFAR-100."""

    places: tuple[str, ...]  # archives and their folder, the first that exists is read
    batches: Mapping[str, Sequence[str]]  # the files of each split
    names: Mapping[str, int]  # files of class names, those of the label first, and the number of names in each


_VERSIONS = (
    _Version(
        ("cifar-10-batches-bin", "cifar-10-binary.tar", "cifar-10-binary.tar.gz"),
        {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]},
        {"batches.meta.txt": 10},
    ),
    _Version(
        ("cifar-100-binary", "cifar-100-binary.tar", "cifar-100-binary.tar.gz"),
        {"train": ["train.bin"], "test": ["test.bin"]},
        {"fine_label_names.txt": 100, "coarse_label_names.txt": 20},
    ),
)


@dataclass(frozen=True)
class RawCifar:
    """The files to scan, and the names of the classes and of CIFAR-100's coarse classes."""

    sources: tuple[Source, ...]
    names: tuple[str, ...]
    coarse_names: tuple[str, ...] = ()


def find_cifar(raw_data_dir: str, splits: Sequence[str], scratch: Scratch | None) -> RawCifar:
    """The sources of the chosen splits, or of all splits that exist.

    scratch: for a .tar.gz, None forbids writing. Raises RawDataError if files are missing or damaged, OptionError."""
    storage = open_raw_data(raw_data_dir)
    place = _place(storage, raw_data_dir)
    tar = readable(storage, place, scratch, by_suffix(place)) if place.endswith((".tar", ".tar.gz")) else None
    storage = open_storage(tar.uri) if tar else storage
    files = _files(storage, place, tar)
    version = _version(files, place)
    names = [_names(storage, files, name, count, place) for name, count in version.names.items()]
    sources: list[Source] = []
    for split in splits or SPLITS:
        batches = version.batches[split]
        _check_whole(files, split, batches, place)
        found = (_source(split, name, *files[name], len(names) + PIXEL_BYTES) for name in batches)
        sources += [dataclasses.replace(source, origin=tar.origin if tar else "") for source in found]
    return RawCifar(tuple(sources), names[0], names[1] if len(names) > 1 else ())


def _place(storage: Storage, raw_data_dir: str) -> str:
    """The path of the archive, or of the folder with the files."""
    files, folders = storage.entries(raw_data_dir)
    there = {*files, *folders}
    if any(name in files for v in _VERSIONS for batches in v.batches.values() for name in batches):
        return raw_data_dir
    found = [next((name for name in v.places if name in there), None) for v in _VERSIONS]
    if all(found):
        raise RawDataError(f"{raw_data_dir} has {found[0]} and {found[1]}. Give a directory with only one of them.")
    if place := next(filter(None, found), None):
        return join(raw_data_dir, place)
    if other := next(filter(_OTHER_VERSION.fullmatch, sorted(there)), None):
        wanted = "cifar-100-binary.tar.gz" if "100" in other or other.startswith("meta") else "cifar-10-binary.tar.gz"
        raise RawDataError(
            f"{join(raw_data_dir, other)} is the Python or Matlab version, which is not read: unpickling runs code. "
            f"Use {wanted}, the binary version, from {_PAGE}."
        )
    raise RawDataError(
        f"{raw_data_dir} has none of {', '.join(name for v in _VERSIONS for name in v.places)}, and no .bin files. "
        f"It has: {first_few(sorted(there))}."
    )


def _files(storage: Storage, place: str, tar: Readable | None) -> _Files:
    """The files by base name: their folders in a tar do not matter."""
    if tar is None:
        return {member.name: (file, member) for file, member in folder_members(storage, place)}
    file = File(tar.uri, tar.stat)
    return {member.name.rsplit("/", 1)[-1]: (file, member) for member in members(storage, tar.uri, 0, tar.stat.bytes)}


def _version(files: _Files, place: str) -> _Version:
    for version in _VERSIONS:
        if any(name in files for batches in version.batches.values() for name in batches):
            return version
    raise RawDataError(
        f"{place} has no data_batch_1.bin or test_batch.bin (CIFAR-10), and no train.bin or test.bin (CIFAR-100). "
        f"It has: {first_few(sorted(files))}."
    )


def _check_whole(files: _Files, split: str, batches: Sequence[str], place: str) -> None:
    missing = [name for name in batches if name not in files]
    if len(missing) == len(batches):
        raise RawDataError(f"{place} does not have the {split} split. It has: {first_few(sorted(files))}.")
    if missing:
        raise RawDataError(
            f"{place}: {len(missing)} of {len(batches)} files of {split!r} are missing: {', '.join(missing)}. Unpack "
            "the archive again."
        )


def _names(storage: Storage, files: _Files, name: str, count: int, place: str) -> tuple[str, ...]:
    if name not in files:
        raise LabelError(f"{place} has no {name}, the names of the {count} classes. Unpack the archive again.")
    file, member = files[name]
    size = min(member.size, _MAX_NAMES_BYTES)
    names = parse_class_names(b"".join(storage.read_ranges([(file.uri, member.offset, size)])), f"{name} of {place}")
    if len(names) != count:
        raise LabelError(f"{name} of {place} has {len(names)} class names, expected {count}. It is damaged.")
    return names


def _source(split: str, name: str, file: File, member: Member, record_bytes: int) -> Source:
    if member.kind != "file" or not member.size or member.size % record_bytes:
        raise RawDataError(
            f"{name} of {file.uri} is a {member.kind} of {member.size} bytes; it must be a file of complete records of "
            f"{record_bytes} bytes. It was not fully copied, or is damaged: unpack or copy it again."
        )
    return Source(split, file.uri, file.stat, member.offset, member.size, name, "file")
