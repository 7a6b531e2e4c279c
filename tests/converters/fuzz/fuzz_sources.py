"""What is damaged: one row a source, and how to find and to count its records. A new source is a new row.

test_fuzz has this folder on its path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c
import mutations
from hostile_tars import walk
from table_columns import find_columns

from beam_jobs.scratch import Scratch
from converters import tfrecord as layouts
from converters.image_folder.converter import ImageFolderConverter
from converters.image_folder.layouts import find_folders
from converters.imagenet.converter import ImagenetConverter
from converters.imagenet.layouts import TRAIN_TAR, VALIDATION_TAR, find_raw, read_synsets
from converters.pixels.cifar import find_cifar
from converters.pixels.idx import IdxConverter, find_idx
from converters.raw.class_names import read_class_names
from converters.raw.splits import HeldOut
from converters.table.converter import ImageTableConverter
from converters.table.layouts import find_tables
from converters.table.row_converter import RowConverter

Files = dict[str, bytes]  # path under the raw data directory -> its bytes


def with_a_table(files: Files) -> Files:
    """Kaggle's labels in the place of synset_labels.txt."""
    labels = files["synset_labels.txt"].decode().split()
    rows = (f"ILSVRC2012_val_{n:08d},{label} 1 2 3 4 \n" for n, label in enumerate(labels, 1))
    table = "ImageId,PredictionString\n" + "".join(rows)
    return {
        **{k: v for k, v in files.items() if k != "synset_labels.txt"},
        "LOC_val_solution.csv": table.encode(),
    }


def find_imagenet(raw: str, out: str):
    synsets = tuple(read_synsets(f"{raw}/synsets.txt"))
    found = find_raw(raw, ["train", "validation"], synsets, Scratch(out))
    return ImagenetConverter(synsets, found.validation_labels), found.sources


def find_image_folder(raw: str, out: str):
    found = find_folders(raw, [], None)
    return ImageFolderConverter(found.classes), found.sources


def find_mnist(raw: str, out: str):
    sources, labels = find_idx(raw, [], None, Scratch(out))
    return IdxConverter(read_class_names(f"{raw}/digits.txt"), labels), sources


def find_either_cifar(raw: str, out: str):
    return find_cifar(raw, [], Scratch(out))


def find_tfrecords(raw: str, out: str):
    converter, sources = layouts.find_raw(raw, [], [], Scratch(out))
    return replace(converter, labels=None), sources


def find_image_tables(raw: str, out: str):
    tables = find_tables(raw, [], None)
    target = (*find_columns(tables.tables, {"animal": "category", "*": "skip"}),)
    return ImageTableConverter("file", target), tables.sources


def find_text_tables(raw: str, out: str):
    tables = find_tables(raw, [], HeldOut(0.3))
    columns = (*find_columns(tables.tables, {"text": "text", "about": "category", "*": "skip"}),)
    return RowConverter(columns, held_out=HeldOut(0.3)), tables.sources


def find_rows(raw: str, out: str):
    tables = find_tables(raw, [], HeldOut(0.3))
    return RowConverter((*find_columns(tables.tables, {}),), held_out=HeldOut(0.3)), tables.sources


def in_records(files: Files) -> int:
    """Frames up to the first whose length has another checksum, of files that are not compressed."""
    found = 0
    for data in (data for name, data in files.items() if "tfrecord" in name):
        at = 0
        while data[at + 8 : at + 12] == masked_crc(data[at : at + 8]):
            found += 1
            at += 16 + int.from_bytes(data[at : at + 8], "little")
    return found


def masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return (
        (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
        if len(data) == 8
        else b"none"
    )


def in_lines(files: Files) -> int:
    """Lines with something in them, of jsonl files, and of csv files without a quote: it makes one record of many."""
    found = {
        name: [line for line in data.split(b"\n") if line.strip()] for name, data in files.items()
    }
    heads = [name for name in found if name.endswith(".csv") and b'"' not in files[name]]
    lines = sum(len(found[name]) for name in found if name in heads or name.endswith(".jsonl"))
    return lines - sum(bool(found[name]) for name in heads)


def in_tars(files: Files) -> int:
    classes = walk(files[TRAIN_TAR])
    return sum(len(walk(data)) for data in classes) + len(walk(files[VALIDATION_TAR]))


def in_folders(files: Files) -> int:
    return sum("/" in path and not Path(path).name.startswith(".") for path in files)


@dataclass(frozen=True)
class Source:
    """kind: of CONVERTERS. damaged: which file is damaged, as a pattern. records: how many there are at least.

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
ARCHIVES = ("image folder archives", find_image_folder)
SOURCES: Mapping[str, Source] = {
    "train tar": Source(*IMAGENET, TRAIN_TAR, in_tars, TARS, 12, None),
    "validation tar": Source(*IMAGENET, VALIDATION_TAR, in_tars, TARS, 10, 4),
    "label files": Source(*IMAGENET, "*.txt", in_tars, mutations.BYTES, 4, None),
    "Kaggle's table": Source("Kaggle", find_imagenet, "*.csv", in_folders, mutations.BYTES, 4, None),
    "images in folders": Source("imagenet folders", find_imagenet, "*/**/*.JPEG", in_folders, IMAGES, 6),
    "JPEG files": Source(*FOLDERS, "**/*.jpeg", in_folders, IMAGES, 6),
    "PNG files": Source(*FOLDERS, "**/*.png", in_folders, IMAGES, 6),
    "WebP files": Source(*FOLDERS, "**/*.webp", in_folders, IMAGES, 6),
    "zip of folders": Source(*ARCHIVES, "*.zip", lambda files: 0, mutations.BYTES, 8, None),
    "tar of folders": Source(*ARCHIVES, "*.tar", lambda files: 0, TARS, 4, None),
    "idx": Source("idx", find_mnist, "*ubyte*", lambda files: 0, mutations.BYTES, 4, None),
    "CIFAR's archive": Source("cifar-10 archive", find_either_cifar, "*.gz", lambda files: 0, mutations.BYTES, 4, None),
    "CIFAR's files": Source("cifar-100 folder", find_either_cifar, "*.bin", lambda files: 0, mutations.BYTES, 4, None),
    "TFRecord files": Source("tfrecord", find_tfrecords, "*", in_records, mutations.BYTES, 6, None),
    "compressed TFRecord files": Source(
        "tfrecord compressed", find_tfrecords, "*", lambda files: 0, mutations.BYTES, 4, None
    ),
    "csv tables": Source("csv of images", find_image_tables, "*.csv", in_lines, mutations.BYTES, 4, None),
    "jsonl tables": Source("jsonl of texts", find_text_tables, "*.jsonl", in_lines, mutations.BYTES, 4, None),
    "parquet tables": Source("rows of parquet", find_rows, "*.parquet", lambda files: 0, mutations.BYTES, 20, None),
}  # fmt: skip
