"""Where the files of CIFAR are: in the archive as downloaded, in the folder that it unpacks to, or right here.

    CIFAR-10     data_batch_1.bin ... data_batch_5.bin, test_batch.bin, batches.meta.txt
    CIFAR-100    train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt

The files say which of the two it is. The Python and Matlab versions are refused: a pickle is a program."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.references import File
from beam_jobs.scratch import Scratch
from converters.cifar import PIXEL_BYTES
from converters.class_names import parse_class_names
from converters.compressed import stat_of, to_scratch
from converters.image_records import folder_members
from converters.tars import Member, members
from pipeline.shards.errors import LabelError, RawDataError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

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
    """One of the two: where it is found, and what it holds."""

    places: tuple[str, ...]  # in the order that they are looked for
    batches: Mapping[str, Sequence[str]]  # the files of each split
    names: Mapping[str, int]  # files of class names, the labels' own first, and how many each has


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
    """What was found: the files to scan, the names of the classes, CIFAR-100's coarse ones too."""

    sources: tuple[Source, ...]
    names: tuple[str, ...]
    coarse_names: tuple[str, ...] = ()


def find_cifar(raw_data_dir: str, splits: Sequence[str], scratch: Scratch | None) -> RawCifar:
    """The sources of the chosen splits; of all that there are if none is chosen.

    scratch: where a .tar.gz is uncompressed; None forbids writing.
    Raises RawDataError saying what is missing or damaged, OptionError."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist. Give the directory of the raw data.")
    place = _place(storage, raw_data_dir)
    inside = to_scratch(storage, place, scratch) if place.endswith(".gz") else place
    stat = stat_of(storage, place, inside) if place.endswith((".tar", ".tar.gz")) else None
    storage = open_storage(inside)
    files = _files(storage, inside, stat)
    version = _version(files, place)
    names = [_names(storage, files, name, count, place) for name, count in version.names.items()]
    sources: list[Source] = []
    for split in splits or SPLITS:
        batches = version.batches[split]
        _check_whole(files, split, batches, place)
        found = (_source(split, name, *files[name], len(names) + PIXEL_BYTES) for name in batches)
        sources += [dataclasses.replace(source, origin=place if inside != place else "") for source in found]
    return RawCifar(tuple(sources), names[0], names[1] if len(names) > 1 else ())


def _place(storage: Storage, raw_data_dir: str) -> str:
    """The path of the archive, or of the folder of the files."""
    files, folders = storage.entries(raw_data_dir)
    there = {*files, *folders}
    if any(name in files for v in _VERSIONS for batches in v.batches.values() for name in batches):
        return raw_data_dir
    found = [next((name for name in v.places if name in there), None) for v in _VERSIONS]
    if all(found):
        raise RawDataError(f"{raw_data_dir} has {found[0]} and {found[1]}. Give a directory with one of them.")
    if place := next(filter(None, found), None):
        return join(raw_data_dir, place)
    if other := next(filter(_OTHER_VERSION.fullmatch, sorted(there)), None):
        wanted = "cifar-100-binary.tar.gz" if "100" in other or other.startswith("meta") else "cifar-10-binary.tar.gz"
        raise RawDataError(
            f"{join(raw_data_dir, other)} is of the Python or Matlab version. It is not read: a pickle is a program. "
            f"Take {wanted}, the binary version, from {_PAGE}."
        )
    raise RawDataError(
        f"{raw_data_dir} has none of {', '.join(name for v in _VERSIONS for name in v.places)}, nor .bin files. There "
        f"is: {', '.join(sorted(there)[:8]) or 'nothing'}."
    )


def _files(storage: Storage, place: str, tar: Stat | None) -> _Files:
    """By base name: where they stand in a tar is of no interest. tar: None for a folder."""
    if tar is None:
        return {member.name: (file, member) for file, member in folder_members(storage, place)}
    file = File(place, tar)
    return {member.name.rsplit("/", 1)[-1]: (file, member) for member in members(storage, place, 0, tar.bytes)}


def _version(files: _Files, place: str) -> _Version:
    for version in _VERSIONS:
        if any(name in files for batches in version.batches.values() for name in batches):
            return version
    raise RawDataError(
        f"{place} has no data_batch_1.bin or test_batch.bin, as CIFAR-10 has, and no train.bin or test.bin, as "
        f"CIFAR-100. There is: {', '.join(sorted(files)[:8]) or 'nothing'}."
    )


def _check_whole(files: _Files, split: str, batches: Sequence[str], place: str) -> None:
    missing = [name for name in batches if name not in files]
    if len(missing) == len(batches):
        raise RawDataError(f"{place} does not have the {split} split. There is: {', '.join(sorted(files)[:8])}.")
    if missing:
        raise RawDataError(
            f"{place}: of {len(batches)} files of {split!r} are missing {', '.join(missing)}. Unpack the archive again."
        )


def _names(storage: Storage, files: _Files, name: str, count: int, place: str) -> tuple[str, ...]:
    if name not in files:
        raise LabelError(f"{place} has no {name}, which names the {count} classes. Unpack the archive again.")
    file, member = files[name]
    size = min(member.size, _MAX_NAMES_BYTES)
    names = parse_class_names(b"".join(storage.read_ranges([(file.uri, member.offset, size)])), f"{name} of {place}")
    if len(names) != count:
        raise LabelError(f"{name} of {place} names {len(names)} classes; there are {count}. It is damaged.")
    return names


def _source(split: str, name: str, file: File, member: Member, record_bytes: int) -> Source:
    if member.kind != "file" or not member.size or member.size % record_bytes:
        raise RawDataError(
            f"{name} of {file.uri} is a {member.kind} of {member.size} bytes; it must be a file of whole records of "
            f"{record_bytes} bytes each. It was not fully copied, or is damaged: unpack or copy it again."
        )
    return Source(split, file.uri, file.stat, member.offset, member.size, name, "file")
