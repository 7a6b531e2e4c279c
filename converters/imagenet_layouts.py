"""Where ImageNet's images are: the layouts that raw data comes in, told apart by content, split by split.

    original tars       ILSVRC2012_img_train.tar (a tar of class tars), ILSVRC2012_img_val.tar; also as .tar.gz
    extracted folders   train/<wnid>/*.JPEG, validation/*.JPEG

Both with synset_labels.txt for validation: line n is the synset of validation image n. Both give the same shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.scratch import uncompressed
from converters.imagenet import SPLITS, VALIDATION_LABELS
from converters.synsets import check_known
from converters.tars import members
from pipeline.shards.errors import OptionError, RawDataError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["TRAIN_TAR", "VALIDATION_TAR", "RawImagenet", "find_raw"]

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
_TARS = {"train": TRAIN_TAR, "validation": VALIDATION_TAR}


@dataclass(frozen=True)
class RawImagenet:
    """What was found: the units to scan, the synset of each validation image, temporary files among them."""

    sources: tuple[Source, ...]
    validation_labels: tuple[str, ...]
    scratch: tuple[str, ...] = ()


def find_raw(raw_data_dir: str, splits: Sequence[str], synsets: Sequence[str], scratch_dir: str | None) -> RawImagenet:
    """The sources of the chosen splits.

    scratch_dir: the output directory, under which a .tar.gz is uncompressed; None forbids writing.
    Raises RawDataError naming what is missing, LabelError naming a class that is not in the list."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist.")
    sources: list[Source] = []
    scratch: list[str] = []
    for split in (split for split in SPLITS if split in splits):
        folder = join(raw_data_dir, split)
        tar = join(raw_data_dir, _TARS[split])
        if storage.exists(tar):
            sources += _in_tar(storage, split, tar, synsets)
        elif storage.exists(f"{tar}.gz"):
            scratch.append(_uncompressed(storage, f"{tar}.gz", scratch_dir))
            sources += _in_tar(storage, split, scratch[-1], synsets)
        elif storage.exists(folder):
            sources += _in_folder(storage, split, folder, synsets)
        else:
            raise RawDataError(_missing(storage, raw_data_dir, split))
    labels = _validation_labels(storage, raw_data_dir, synsets) if "validation" in splits else ()
    return RawImagenet(tuple(sources), labels, tuple(scratch))


def _uncompressed(storage: Storage, path: str, scratch_dir: str | None) -> str:
    if scratch_dir is None:
        raise OptionError(f"{path} has to be uncompressed before it can be scanned, and --dry_run writes nothing.")
    return uncompressed(storage, path, open_storage(scratch_dir), scratch_dir)


def _in_tar(storage: Storage, split: str, path: str, synsets: Sequence[str]) -> Iterator[Source]:
    stat = storage.stat(path)
    if split == "validation":
        yield Source(split, path, stat, 0, stat.bytes)
        return
    found = False
    for member in members(storage, path, 0, stat.bytes):
        found = True
        synset = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
        check_known(synset, synsets, f"member {member.name} of {path}")
        yield Source(split, path, stat, member.offset, member.size, synset)
    if not found:
        raise RawDataError(f"{path} has no class tars in it. Is it the original train tar, fully copied?")


def _in_folder(storage: Storage, split: str, folder: str, synsets: Sequence[str]) -> Iterator[Source]:
    if split == "validation":
        yield Source(split, folder, Stat(0), kind="folder")
        return
    stray, classes = storage.entries(folder)
    if stray or not classes:
        what = f"files beside its class folders ({', '.join(list(stray)[:3])})" if stray else "no class folders in it"
        raise RawDataError(f"{folder} has {what}. The extracted layout is train/<wnid>/*.JPEG.")
    for synset in classes:
        check_known(synset, synsets, f"folder {join(folder, synset)}")
        yield Source(split, join(folder, synset), Stat(0), tag=synset, kind="folder")


def _validation_labels(storage: Storage, raw_data_dir: str, synsets: Sequence[str]) -> tuple[str, ...]:
    path = join(raw_data_dir, VALIDATION_LABELS)
    if not storage.exists(path):
        raise RawDataError(_missing(storage, raw_data_dir, "validation"))
    labels = tuple(storage.read(path).decode().split())
    for line, synset in enumerate(labels, start=1):
        check_known(synset, synsets, f"line {line} of {path}")
    return labels


def _missing(storage: Storage, raw_data_dir: str, split: str) -> str:
    files, folders = storage.entries(raw_data_dir)
    there = [*folders, *files]
    labels = f" and {VALIDATION_LABELS} (one synset a line: line n is validation image n)" * (split == "validation")
    images = {"train": "train/<wnid>/*.JPEG", "validation": "validation/*.JPEG"}[split]
    return (
        f"{raw_data_dir} does not have the {split} split. It needs {_TARS[split]} (or .tar.gz), or {images}{labels}. "
        f"There is: {', '.join(there[:8]) or 'nothing'}. --splits chooses which splits to convert."
    )
