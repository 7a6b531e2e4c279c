"""Where ImageNet's images are: the layouts that raw data comes in, told apart by content, split by split.

    original tars       ILSVRC2012_img_train.tar (a tar of class tars), ILSVRC2012_img_val.tar; also as .tar.gz
    extracted           train/<wnid>/*.JPEG, validation/*.JPEG (or val/)
    class folders       train/<wnid>/*.JPEG, val/<wnid>/*.JPEG (or validation/), as torchvision wants them
    Kaggle              ILSVRC/Data/CLS-LOC/train/<wnid>/*.JPEG, ILSVRC/Data/CLS-LOC/val/*.JPEG, LOC_val_solution.csv

Validation images that are not in class folders need synset_labels.txt (line n is the synset of validation image n) or
Kaggle's table. All give the same shards."""

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch
from converters.class_names import label_text
from converters.compressed import stat_of, to_scratch
from converters.imagenet import SPLITS, VALIDATION_LABELS
from converters.synsets import check_known
from converters.tars import members
from pipeline.shards.errors import RawDataError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["TRAIN_TAR", "VALIDATION_TAR", "RawImagenet", "find_raw"]

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
_TARS = {"train": TRAIN_TAR, "validation": VALIDATION_TAR}
_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
_KAGGLE_IMAGES, _KAGGLE_LABELS = "ILSVRC/Data/CLS-LOC", "LOC_val_solution.csv"


@dataclass(frozen=True)
class RawImagenet:
    """What was found: the units to scan, the synset of each validation image."""

    sources: tuple[Source, ...]
    validation_labels: tuple[str, ...]


def find_raw(raw_data_dir: str, splits: Sequence[str], synsets: Sequence[str], scratch: Scratch | None) -> RawImagenet:
    """The sources of the chosen splits.

    scratch: where a .tar.gz is uncompressed; None forbids writing.
    Raises RawDataError naming what is missing, LabelError naming a class that is not in the list."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist. Give the directory of the raw data.")
    sources: list[Source] = []
    for split in (split for split in SPLITS if split in splits):
        tar = join(raw_data_dir, _TARS[split])
        if storage.exists(tar):
            sources += _in_tar(storage, split, tar, synsets)
        elif storage.exists(f"{tar}.gz"):
            sources += _in_tar(storage, split, to_scratch(storage, f"{tar}.gz", scratch), synsets, origin=f"{tar}.gz")
        elif folder := _folder(storage, raw_data_dir, split):
            sources += _in_folder(storage, split, folder, synsets)
        else:
            raise RawDataError(_missing(storage, raw_data_dir, split))
    by_number = any(source.split == "validation" and not source.tag for source in sources)
    labels = _validation_labels(storage, raw_data_dir, synsets) if by_number else ()
    return RawImagenet(tuple(sources), labels)


def _folder(storage: Storage, raw_data_dir: str, split: str) -> str | None:
    for root in (raw_data_dir, join(raw_data_dir, _KAGGLE_IMAGES)):
        for name in _FOLDERS[split]:
            if storage.exists(join(root, name)):
                return join(root, name)
    return None


def _in_tar(storage: Storage, split: str, path: str, synsets: Sequence[str], origin: str = "") -> Iterator[Source]:
    stat = stat_of(storage, origin or path, path)
    if split == "validation":
        yield Source(split, path, stat, 0, stat.bytes, origin=origin)
        return
    found = False
    for member in members(storage, path, 0, stat.bytes):
        found = True
        synset = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
        check_known(synset, synsets, f"member {member.name} of {path}")
        yield Source(split, path, stat, member.offset, member.size, synset, origin=origin)
    if not found:
        raise RawDataError(f"{path} has no class tars in it. Is it the original train tar, fully copied?")


def _in_folder(storage: Storage, split: str, folder: str, synsets: Sequence[str]) -> Iterator[Source]:
    files, classes = storage.entries(folder)
    if split == "validation" and files:  # folders among them go to the ledger
        yield Source(split, folder, Stat(0), kind="folder")
        return
    if files or not classes:
        what = f"files beside its class folders ({', '.join(list(files)[:3])})" if files else "no class folders in it"
        raise RawDataError(f"{folder} has {what}. The extracted layout is {split}/<wnid>/*.JPEG.")
    for synset in classes:
        check_known(synset, synsets, f"folder {join(folder, synset)}")
        yield Source(split, join(folder, synset), Stat(0), tag=synset, kind="folder")


def _validation_labels(storage: Storage, raw_data_dir: str, synsets: Sequence[str]) -> tuple[str, ...]:
    """The synset of validation image n at place n - 1."""
    plain, table = join(raw_data_dir, VALIDATION_LABELS), join(raw_data_dir, _KAGGLE_LABELS)
    if storage.exists(plain):
        path, labels = plain, tuple(label_text(storage.read(plain), plain).split())
    elif storage.exists(table):
        path, labels = table, _in_table(table, label_text(storage.read(table), table))
    else:
        raise RawDataError(_missing(storage, raw_data_dir, "validation"))
    for number, synset in enumerate(labels, start=1):
        check_known(synset, synsets, f"validation image {number} in {path}")
    return labels


def _in_table(path: str, text: str) -> tuple[str, ...]:
    """Kaggle's table: ImageId, and the synset with the boxes of all objects of it."""
    found: dict[int, str] = {}
    rows = csv.DictReader(io.StringIO(text))
    try:
        for row in rows:
            name, _, number = (row.get("ImageId") or "").rpartition("_")
            synset = (row.get("PredictionString") or "").split(" ")[0]
            if name != "ILSVRC2012_val" or not re.fullmatch("[0-9]{1,8}", number) or not synset:
                raise RawDataError(
                    f"{path}, line {rows.line_num}: {str(row)[:300]} is not like ImageId=ILSVRC2012_val_00000001, "
                    "PredictionString='n01440764 ...'. It is damaged, or another competition's."
                )
            found[int(number)] = synset
    except csv.Error as e:
        raise RawDataError(f"{path}, after line {rows.line_num}: no table of commas: {e}. It is damaged.") from e
    if sorted(found) != list(range(1, len(found) + 1)):
        lacking = next(number for number in itertools.count(1) if number not in found)
        raise RawDataError(f"{path} has {len(found)} images, but none of number {lacking}. It is not complete.")
    return tuple(found[number] for number in sorted(found))


def _missing(storage: Storage, raw_data_dir: str, split: str) -> str:
    files, folders = storage.entries(raw_data_dir)
    there = [*folders, *files]
    needed = {
        "train": "train/<wnid>/*.JPEG",
        "validation": f"val/<wnid>/*.JPEG, or validation/*.JPEG and {VALIDATION_LABELS} (one synset a line: line n is "
        f"validation image n; or Kaggle's {_KAGGLE_LABELS})",
    }[split]
    return (
        f"{raw_data_dir} does not have the {split} split. It needs {_TARS[split]} (or .tar.gz), or {needed}. Kaggle's "
        f"folders may stay under {_KAGGLE_IMAGES}. There is: {', '.join(there[:8]) or 'nothing'}. --splits chooses "
        "which splits to convert."
    )
