"""What is damaged: one row a source, and how to find and to count its records. A new source is a new row.

test_fuzz has this folder on its path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations
from hostile_tars import walk

from converters.image_folder import ImageFolderConverter
from converters.image_folder_layouts import find_folders
from converters.imagenet import ImagenetConverter
from converters.imagenet_layouts import TRAIN_TAR, VALIDATION_TAR, find_raw
from converters.synsets import read_synsets
from pipeline.shards.schemes import open_storage

Files = dict[str, bytes]  # path under the raw data directory -> its bytes


def with_a_table(files: Files) -> Files:
    """Kaggle's labels in the place of synset_labels.txt."""
    labels = files["synset_labels.txt"].decode().split()
    rows = (f"ILSVRC2012_val_{n:08d},{label} 1 2 3 4 \n" for n, label in enumerate(labels, 1))
    table = "ImageId,PredictionString\n" + "".join(rows)
    return {**{k: v for k, v in files.items() if k != "synset_labels.txt"}, "LOC_val_solution.csv": table.encode()}


def find_imagenet(raw: str, out: str):
    synsets = tuple(read_synsets(open_storage(raw), f"{raw}/synsets.txt"))
    found = find_raw(raw, ["train", "validation"], synsets, out)
    return ImagenetConverter(synsets, found.validation_labels), found.sources


def find_image_folder(raw: str, out: str):
    found = find_folders(raw, [], None)
    return ImageFolderConverter(found.classes), found.sources


def in_tars(files: Files) -> int:
    classes = walk(files[TRAIN_TAR])
    return sum(len(walk(data)) for data in classes) + len(walk(files[VALIDATION_TAR]))


def in_folders(files: Files) -> int:
    return sum("/" in path and not Path(path).name.startswith(".") for path in files)


@dataclass(frozen=True)
class Source:
    """kind: of write_raw_data. damaged: which file is damaged, as a pattern. records: how many there are at least.

    loses: how many records one input may cost at most; None if it may stop the conversion, with an error of ours."""

    kind: str
    find: Callable[[str, str], Any]
    damaged: str
    records: Callable[[Files], int]
    mutations: Mapping[str, mutations.Mutation]
    inputs: int  # of each mutation
    loses: int | None = 1


TARS = {**mutations.BYTES, "header field": mutations.header_field}
IMAGES = {**mutations.BYTES, "absurd size": mutations.absurd_size}
IMAGENET, FOLDERS = ("imagenet tars", find_imagenet), ("image folder by split", find_image_folder)
SOURCES: Mapping[str, Source] = {
    "train tar": Source(*IMAGENET, TRAIN_TAR, in_tars, TARS, 12, None),
    "validation tar": Source(*IMAGENET, VALIDATION_TAR, in_tars, TARS, 10, 4),
    "label files": Source(*IMAGENET, "*.txt", in_tars, mutations.BYTES, 4, None),
    "Kaggle's table": Source("Kaggle", find_imagenet, "*.csv", in_folders, mutations.BYTES, 4, None),
    "images in folders": Source("imagenet folders", find_imagenet, "*/**/*.JPEG", in_folders, IMAGES, 6),
    "JPEG files": Source(*FOLDERS, "**/*.jpeg", in_folders, IMAGES, 6),
    "PNG files": Source(*FOLDERS, "**/*.png", in_folders, IMAGES, 6),
    "WebP files": Source(*FOLDERS, "**/*.webp", in_folders, IMAGES, 6),
}
