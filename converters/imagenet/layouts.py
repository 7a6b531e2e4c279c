"""Finds ImageNet's images in the layouts that raw data comes in. Each split may have its own
layout. Checks --full-set.

    original tars   ILSVRC2012_img_train.tar (a tar of class tars), ILSVRC2012_img_val.tar;
                    also as .tar.gz
    extracted       train/<wnid>/*.JPEG, validation/*.JPEG (or val/)
    class folders   train/<wnid>/*.JPEG, val/<wnid>/*.JPEG (or validation/), as torchvision
                    expects
    Kaggle          ILSVRC/Data/CLS-LOC/train/<wnid>/*.JPEG, ILSVRC/Data/CLS-LOC/val/*.JPEG,
                    LOC_val_solution.csv

Validation images outside of class folders need synset_labels.txt (line n is the synset of
validation image n) or Kaggle's table. All layouts result in the same shards.

The classes are ImageNet's 1,000, or those of a label file. A line of it has an id of WordNet and
optionally a description: `n01440764 tench, Tinca tinca`. Labels are places in the sorted list."""

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch, readable
from converters.imagenet.converter import SPLITS, VALIDATION_LABELS
from converters.raw.class_names import names_digest, position, read_label_text
from converters.raw.files import first_few, open_raw_data
from converters.raw.tars import members
from pipeline.checks import did_you_mean
from pipeline.errors import LabelError, RawDataError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat, join

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
_TARS = {"train": TRAIN_TAR, "validation": VALIDATION_TAR}
_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
_KAGGLE_IMAGES, _KAGGLE_LABELS = "ILSVRC/Data/CLS-LOC", "LOC_val_solution.csv"
FULL_SET: Mapping[str, int] = {"train": 1_281_167, "validation": 50_000}
_OFFICIAL_LABELS = (
    "82706d9a9dfbb5db50f3ba259b4d1a02"  # of the 50,000 synsets in the order of the images
)


@dataclass(frozen=True)
class RawImagenet:
    """The units to scan, and the synset of each validation image."""

    sources: Sequence[Source]
    validation_labels: tuple[str, ...]


def find_raw(
    raw_data_dir: str, splits: Sequence[str], synsets: Sequence[str], scratch: Scratch | None
) -> RawImagenet:
    """The sources of the chosen splits.

    scratch: for a .tar.gz, None forbids writing. Raises RawDataError if something is missing,
    LabelError for a class that is not in the list, OptionError."""
    storage = open_raw_data(raw_data_dir)
    roots = (raw_data_dir, join(raw_data_dir, _KAGGLE_IMAGES))
    sources: list[Source] = []
    for split in (split for split in SPLITS if split in splits):
        tars = (join(raw_data_dir, f"{_TARS[split]}{suffix}") for suffix in ("", ".gz"))
        folders = (join(root, name) for root in roots for name in _FOLDERS[split])
        if tar := next(filter(storage.exists, tars), None):
            sources += _in_tar(tar, readable(tar, scratch, split), synsets)
        elif folder := next(filter(storage.exists, folders), None):
            sources += _in_folder(split, folder, synsets)
        else:
            raise _missing(raw_data_dir, split)
    by_number = any(source.split == "validation" and not source.tag for source in sources)
    labels = _validation_labels(raw_data_dir, synsets) if by_number else ()
    return RawImagenet(sources, labels)


def check_full_set(raw: RawImagenet, splits: Sequence[str]) -> None:
    """Raises RawDataError if a class is missing or the validation labels are not the official ones.

    The scan counts the images. Nothing checks that class folders contain the right ones."""
    for split in splits:
        tags = {source.tag for source in raw.sources if source.split == split and source.tag}
        missing = [synset for synset in ilsvrc2012_synsets() if tags and synset not in tags]
        if missing:
            raise RawDataError(
                f"--full-set: {split} has {len(tags)} classes of 1,000: {missing[0]} is missing"
                f"{f', and {len(missing) - 1} more' if missing[1:] else ''}. Copy them, or leave "
                "out --full-set."
            )
    labels = raw.validation_labels
    if labels and names_digest(labels) != _OFFICIAL_LABELS:
        raise RawDataError(
            f"--full-set: the {len(labels):,} validation labels are not the official 50,000 of "
            "ILSVRC2012 (line n is validation image n, in the order of file names). Use the "
            "original list, or leave out --full-set."
        )


def _in_tar(path: str, tar: Source, synsets: Sequence[str]) -> Iterator[Source]:
    if tar.split == "validation":
        yield tar
        return
    is_empty = True
    for member in members(open_storage(tar.uri), tar.uri, 0, tar.bytes):
        is_empty = False
        synset = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
        check_known(synset, synsets, f"member {member.name} of {path}")
        yield replace(tar, offset=member.offset, bytes=member.size, tag=synset)
    if is_empty:
        raise RawDataError(
            f"{path} has no class tars in it. Is it the original train tar, fully copied?"
        )


def _in_folder(split: str, folder: str, synsets: Sequence[str]) -> Iterator[Source]:
    files, classes = open_storage(folder).entries(folder)
    if split == "validation" and files:  # folders among them become bad records
        yield Source(split, folder, Stat(0), kind="folder")
        return
    if files or not classes:
        what = (
            f"files next to its class folders ({', '.join(list(files)[:3])})"
            if files
            else "no class folders in it"
        )
        raise RawDataError(f"{folder} has {what}. The extracted layout is {split}/<wnid>/*.JPEG.")
    for synset in classes:
        check_known(synset, synsets, f"folder {join(folder, synset)}")
        yield Source(split, join(folder, synset), Stat(0), tag=synset, kind="folder")


def _validation_labels(raw_data_dir: str, synsets: Sequence[str]) -> tuple[str, ...]:
    """The synset of validation image n at index n - 1."""
    plain = join(raw_data_dir, VALIDATION_LABELS)
    table = join(raw_data_dir, _KAGGLE_LABELS)
    path = next(filter(open_storage(raw_data_dir).exists, (plain, table)), None)
    if path is None:
        raise _missing(raw_data_dir, "validation")
    text = read_label_text(path)
    labels = tuple(text.split()) if path == plain else _in_table(path, text)
    for number, synset in enumerate(labels, start=1):
        check_known(synset, synsets, f"validation image {number} in {path}")
    return labels


def _in_table(path: str, text: str) -> tuple[str, ...]:
    """The synsets in Kaggle's table, which has ImageId, and the synset and boxes of the objects."""
    synsets: dict[int, str] = {}
    rows = csv.DictReader(io.StringIO(text))
    try:
        for row in rows:
            name, _, number = (row.get("ImageId") or "").rpartition("_")
            synset = (row.get("PredictionString") or "").split(" ")[0]
            if name != "ILSVRC2012_val" or not re.fullmatch("[0-9]{1,8}", number) or not synset:
                raise RawDataError(
                    f"{path}, line {rows.line_num}: {str(row)[:300]} is not like "
                    "ImageId=ILSVRC2012_val_00000001, PredictionString='n01440764 ...'. It is "
                    "damaged, or of another competition."
                )
            synsets[int(number)] = synset
    except csv.Error as e:
        raise RawDataError(
            f"{path}, after line {rows.line_num}: not a csv table: {e}. It is damaged."
        ) from e
    numbers = range(1, len(synsets) + 1)
    if lacking := [number for number in numbers if number not in synsets]:
        raise RawDataError(
            f"{path} has {len(synsets)} images, but none with number {lacking[0]}. It is "
            "incomplete."
        )
    return tuple(synsets[number] for number in numbers)


def _missing(raw_data_dir: str, split: str) -> RawDataError:
    files, folders = open_storage(raw_data_dir).entries(raw_data_dir)
    needed = {
        "train": "train/<wnid>/*.JPEG",
        "validation": (
            f"val/<wnid>/*.JPEG, or validation/*.JPEG and {VALIDATION_LABELS} (line n is the "
            f"synset of validation image n; or Kaggle's {_KAGGLE_LABELS})"
        ),
    }[split]
    return RawDataError(
        f"{raw_data_dir} does not have the {split} split. It needs {_TARS[split]} (or .tar.gz), or "
        f"{needed}. Kaggle's folders may stay under {_KAGGLE_IMAGES}. It has: "
        f"{first_few([*folders, *files])}. --splits chooses the splits to convert."
    )


def ilsvrc2012_synsets() -> Mapping[str, str]:
    """The 1,000 classes of ILSVRC2012, sorted, with WordNet's description of each."""
    return dict(_classes(files("converters.imagenet").joinpath("synsets.txt").read_text()))


def read_synsets(label_file: str) -> Mapping[str, str]:
    """The classes of a label file, sorted, with descriptions or "". Raises LabelError if it has
    none or repeats one."""
    classes = _classes(read_label_text(label_file))
    repeated = [a for (a, _), (b, _) in itertools.pairwise(classes) if a == b]
    if repeated or not classes:
        raise LabelError(
            f"{label_file}: "
            f"{f'{repeated[0]} is listed twice' if repeated else 'it has no classes'}."
        )
    return dict(classes)


def _classes(text: str) -> list[tuple[str, str]]:
    parts = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return sorted((synset, words[0].strip() if words else "") for synset, *words in parts)


def check_known(synset: str, synsets: Sequence[str], where: str) -> None:
    """Raises LabelError for a class that is not in the list. where: its place, for the error."""
    if position(synsets, synset) < 0:
        raise LabelError(
            f"{where}: class {synset!r} is not in the label list ({len(synsets)} classes, "
            f"{synsets[0]}..{synsets[-1]})."
            f"{did_you_mean(synset, synsets) if len(synsets) <= 20 else ''} Give the full list "
            "with --label-file."
        )
