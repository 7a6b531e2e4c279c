"""One row per layout of raw data that converters read; tests/converters/test_contract.py holds each to one contract,
and tests/test_help.py runs the examples of each command. A new converter is a new row here."""

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raw_data import examples
from raw_data.folders import RawImageFolder
from raw_data.imagenet import imagenet_with_a_bad_image
from raw_data.pixels import RawCifar, RawMnist
from raw_data.records import write_damaged_tfds, write_tfrecords
from raw_data.tables import RawTables
from raw_data.texts import RawTexts
from table_columns import find_columns

from beam_jobs.converter import Converter, Source
from beam_jobs.scratch import Scratch
from converters import tfrecord as layouts
from converters.image_folder.converter import ImageFolderConverter
from converters.image_folder.layouts import find_folders
from converters.imagenet.converter import ImagenetConverter
from converters.imagenet.layouts import find_raw, read_synsets
from converters.pixels.cifar import find_cifar
from converters.pixels.idx import IdxConverter, find_idx
from converters.raw.class_names import read_class_names
from converters.raw.splits import HeldOut
from converters.table.columns import CLASS_NAME, Column
from converters.table.converter import ImageTableConverter
from converters.table.layouts import find_tables
from converters.table.row_converter import RowConverter
from converters.text.converter import TextConverter
from converters.text.documents import DocumentFormat, find_texts
from converters.tfds_to_gcs import DatasetName, find_tfds
from pipeline.raw.image_files import ToJpeg
from pipeline.shards.frames import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, frame
from pipeline.shards.schema import Labels, TableFormat
from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer, TextInfo

__all__ = ["CONVERTERS", "Row"]

SHARDS = {"train": 3, "validation": 2}


@dataclass(frozen=True)
class Row:
    """write: makes a directory of raw data with more than 20 records; at least one is rejected.
    find: what a directory of raw data becomes.
    changes: fields of the converter that change bytes.
    passed_on: of raw data that are records already, those that are intact; None where records are encoded here.
    beside: files that a layout allows beside its own; hidden ones are allowed by all.
    command: `infeed convert` has it for this layout, in one row per command.
    example: writes the raw data that the two EXAMPLES of the command name, into a directory that exists. None is
    rejected. None: tests/test_help.py has shards for it."""

    write: Callable[[Path], Any]
    find: Callable[[str], tuple[Converter, tuple[Source, ...]]]
    changes: tuple[dict[str, Any], ...]
    shards: Mapping[str, int] = field(default_factory=lambda: SHARDS)
    passed_on: Callable[[Path], list[bytes]] | None = None
    beside: tuple[str, ...] = ("readme.html",)
    command: str = ""
    example: Callable[[Path], Any] | None = None


def find_imagenet(directory):
    synsets = tuple(read_synsets(f"{directory}/synsets.txt"))
    raw = find_raw(directory, ["train", "validation"], synsets, None)
    return ImagenetConverter(synsets, raw.validation_labels), raw.sources


def find_image_folder(held_out):
    def find(directory):
        raw = find_folders(directory, [], held_out)
        return ImageFolderConverter(raw.classes, held_out), raw.sources

    return find


def find_mnist(directory):
    sources, labels = find_idx(directory, [], None, Scratch(f"{directory}-scratch"))
    return IdxConverter(read_class_names(f"{directory}/digits.txt"), labels), sources


def find_either_cifar(directory):
    return find_cifar(directory, [], Scratch(f"{directory}-scratch"))


def find_tfrecords(directory):
    converter, sources = layouts.find_raw(directory, [], [], Scratch(f"{directory}-scratch"))
    return replace(converter, labels=Labels("label", 0, ("a", "b", "c"))), sources


def find_tiny(directory):
    return find_tfds(DatasetName("tiny"), directory, [], None)


def intact_payloads(directory):
    found = []
    for path in (path for path in directory.rglob("*") if "tfrecord" in path.name):
        data, at = path.read_bytes(), 0
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        while at < len(data):
            end = at + FRAME_BYTES + int.from_bytes(data[at : at + 8], "little")
            payload = data[at + HEADER_BYTES : end - FOOTER_BYTES]
            found += [payload] if data[at:end] == frame(payload) else []
            at = end
    return found


def find_image_tables(directory):
    tables = find_tables(directory, [], None)
    (found,) = find_columns(tables.tables, {"animal": "category", "*": "skip"})
    label = replace(found, key="image/class/label", base=1, required=True)
    return ImageTableConverter(
        "file", (label, replace(label, kind=CLASS_NAME, key="image/class/text"))
    ), tables.sources


def find_text_tables(directory):
    tables = find_tables(directory, [], HeldOut(0.3))
    (found,) = find_columns(tables.tables, {"about": "category", "*": "skip"}, "|")
    about = replace(found, shape=(None,), key="labels", separator="|", required=True)
    return RowConverter(
        (Column("text", "text", required=True), about), held_out=HeldOut(0.3)
    ), tables.sources


def find_rows(directory):
    tables = find_tables(directory, [], HeldOut(0.3))
    columns = find_columns(tables.tables, {"city": "category", "rooms": "int64"})
    columns = tuple(replace(column, required=column.name == "city") for column in columns)
    return RowConverter(columns, held_out=HeldOut(0.3)), tables.sources


def find_texts_to_pack(directory):
    found = find_texts(directory, [], HeldOut(0.3), DocumentFormat())
    return TextConverter(TextInfo(ByteTokenizer(), 64, "concat", (0.3, 0.0))), found.sources


IMAGENET = ({"synsets": ("n1",)}, {"verify": "decode"}, {"words": ("tench",)})
IMAGE_FOLDER = (
    {"classes": ("cat",)},
    *({"to_jpeg": to} for to in (ToJpeg("decode"), ToJpeg(max_side=9), ToJpeg("end", None, True), ToJpeg(quality=90))),
)  # fmt: skip
IDX = ({"names": ("0", "one")}, {"transpose": True})
IMAGE_TABLES = (
    *({"target": (Column(name, "category", names=names),)} for name, names in (("kind", "ab"), ("animal", ("cat",)))),
    *({"target": target} for target in ((Column("weight", "float32", (1,), parts=("weight",)),), ())),
    *({"column": "note"}, {"key_column": "note"}, {"format": TableFormat(";")}),
)  # fmt: skip
TEXT_TABLES = tuple(
    {"columns": (Column("about", "category", names=("x",), separator=each),)} for each in "|,"
)
PACKED_TEXTS = (  # each differs in one field from what find_texts_to_pack makes
    {"info": TextInfo(ByteTokenizer(), 65, "concat", (0.3, 0.0))},
    {"info": TextInfo(ByteTokenizer(), 64, "documents", (0.3, 0.0))},
    {"info": TextInfo(ByteTokenizer(), 64, "concat", 0.1)},
    *(
        {"info": TextInfo(CharacterTokenizer(alphabet), 64, "concat", 0.3)}
        for alphabet in ("ab", "b")
    ),
    *(
        {"reading": reading}
        for reading in (
            DocumentFormat("block"),
            DocumentFormat(column="x"),
            DocumentFormat(max_bytes=9),
        )
    ),
    {"reading": DocumentFormat(format=TableFormat(";"))},
)
ROWS = (
    *({"columns": (Column("price", kind),)} for kind in ("float32", "text")),
    *({"columns": (column,)} for column in (Column("price", "float32", (2,)), Column("price", "float32", missing="0"))),
    *({"name": "x"}, {"key_column": "note"}, {"format": TableFormat(";")}, {"held_out": HeldOut(0.1)}),
    *IMAGE_FOLDER[1:],
)  # fmt: skip
CIFAR = ({"names": ("cat",)}, {"coarse_names": ("animal",)})
CONVERTERS = {
    "imagenet tars": Row(
        lambda directory: imagenet_with_a_bad_image(directory).write(),
        find_imagenet,
        IMAGENET,
        command="imagenet",
        example=examples.imagenet,
    ),
    "imagenet folders": Row(lambda directory: imagenet_with_a_bad_image(directory).write_folders(), find_imagenet, IMAGENET),
    "image folder by split": Row(
        lambda directory: RawImageFolder(directory).write("train").write("val"),
        find_image_folder(None),
        IMAGE_FOLDER,
    ),
    "image folder archives": Row(
        lambda directory: RawImageFolder(directory).write_archives(),
        find_image_folder(None),
        IMAGE_FOLDER,
    ),
    "image folder": Row(
        lambda directory: RawImageFolder(directory).write(),
        find_image_folder(HeldOut(0.3)),
        IMAGE_FOLDER,
        beside=(),
        command="images",
        example=examples.images,
    ),
    "csv of images": Row(
        lambda directory: RawTables(directory).write(),
        find_image_tables,
        (*IMAGE_TABLES, *IMAGE_FOLDER[1:]),
        command="table",
        example=examples.tables,
    ),
    "jsonl of texts": Row(lambda directory: RawTables(directory).write_texts(), find_text_tables, TEXT_TABLES),
    "rows of csv and jsonl": Row(lambda directory: RawTables(directory).write_columns(), find_rows, ROWS),
    "rows of parquet": Row(lambda directory: RawTables(directory).write_parquet(), find_rows, ROWS),
    "packed texts": Row(
        lambda directory: RawTexts(directory, 90).write(),
        find_texts_to_pack,
        PACKED_TEXTS,
        command="text",
        example=examples.text,
    ),
    "idx": Row(
        lambda directory: RawMnist(directory).write(),
        find_mnist,
        IDX,
        {"train": 3, "test": 2},
        command="idx",
        example=examples.idx,
    ),
    "cifar-10 archive": Row(
        lambda directory: RawCifar(directory).write_archive(),
        find_either_cifar,
        CIFAR,
        {"train": 3, "test": 2},
        command="cifar",
        example=examples.cifar,
    ),
    "cifar-100 folder": Row(
        lambda directory: RawCifar(directory, coarse=True, images=12).write(),
        find_either_cifar,
        CIFAR,
        {"train": 3, "test": 2},
    ),
    "tfds": Row(write_damaged_tfds, find_tiny, ({"check": "none"},), passed_on=intact_payloads),
    "tfrecord": Row(write_tfrecords, find_tfrecords, ({"check": "none"},), passed_on=intact_payloads),
    "tfrecord compressed": Row(
        lambda directory: write_tfrecords(directory, gzip.compress),
        find_tfrecords,
        ({"check": "none"},),
        passed_on=intact_payloads,
    ),
}  # fmt: skip
