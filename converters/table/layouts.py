"""Finds the tables and their columns. Hints at tables where other data is expected.

tables by split     train.csv, validation.jsonl (or val), test.tsv, ...; several per split:
train-00.csv, train_1.csv one set of tables   *.csv, ...; a fraction of the rows is for
validation"""

import argparse
import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from converters.images.image_archives import IMAGE_SUFFIXES
from converters.raw.files import files_below, first_few, left_out, open_raw_data
from converters.raw.splits import HeldOut, by_split, chosen
from pipeline.checks import did_you_mean
from pipeline.errors import OptionError, RawDataError
from pipeline.raw.rows import TABLE_SUFFIXES, TEXT_TABLE_SUFFIXES, Table, is_table, suffix_of
from pipeline.shards.schema import MISSING_VALUES, USUAL_FORMAT, TableFormat, has_single_bytes
from pipeline.storage.storage import COMPRESSED, in_parallel, join

_WHY_NOT = (
    f"The names of tables end in {', '.join(TABLE_SUFFIXES)}; those of text also in "
    f"{', '.join(COMPRESSED)}; caches "
    "are left out."
)

_OF_SPARK = re.compile(r"(^|/)_(SUCCESS|temporary|metadata|common_metadata|committed_|started_)")
_CACHE = re.compile(r"(^|/)cache-[0-9a-f]+\.arrow$")  # of datasets, which has its rows twice


@dataclass(frozen=True)
class RawTables:
    """The files to scan, and all tables, including those of splits that were not chosen. others:
    files of no split. notices: about files that are not tables. whole: all tables as sources, each
    once."""

    sources: Sequence[Source]
    tables: Sequence[Table]
    others: Sequence[str]
    notices: Sequence[str] = ()
    whole: Sequence[Source] = ()


def find_tables(
    raw_data_dir: str,
    splits: Sequence[str],
    held_out: HeldOut | None,
    format: TableFormat = USUAL_FORMAT,
    *,
    of_images: bool = False,
) -> RawTables:
    """The sources of the chosen splits, or of all splits that exist, also in folders. held_out:
    None for tables by split.

    of_images: whether they name images, whose folders are not searched. Raises RawDataError if
    something is missing, OptionError."""
    storage = open_raw_data(raw_data_dir)
    _, folders = storage.entries(raw_data_dir) if of_images else ((), ())
    unsearched = [name for name in folders if not ("=" in name or is_table(name))]
    files = files_below(storage, raw_data_dir, lambda name: name not in unsearched)
    found = {name: stat for name, stat in files if not _OF_SPARK.search(name)}
    if logs := [name for name in found if "_delta_log/" in name]:
        raise RawDataError(
            f"{join(raw_data_dir, logs[0])} is of a Delta table, whose log says which files count. "
            "Write the table as Parquet."
        )
    uris = {
        name: join(raw_data_dir, name)
        for name in found
        if is_table(name) and not _CACHE.search(name)
    }
    if not uris:
        raise RawDataError(
            f"{raw_data_dir} has no tables ({', '.join(TABLE_SUFFIXES)}). It has: "
            f"{first_few([*found, *unsearched])}."
        )
    examples = "table of a split, like train.csv or validation-1.jsonl"
    by_name = by_split(raw_data_dir, list(uris), held_out, examples)

    def sources_of(split: str, names: Iterable[str]) -> list[Source]:
        return [
            Source(split, uris[name], found[name], bytes=found[name].bytes, tag=name, kind="file")
            for name in names
        ]

    splits = chosen(raw_data_dir, splits, by_name)
    read = sorted({name for names in by_name.values() for name in names})
    rest = [name for name in found if not (name in uris or name.lower().endswith(IMAGE_SUFFIXES))]
    return RawTables(
        [source for split in splits for source in sources_of(split, by_name[split])],
        [Table(uris[name], format, name) for name in read],
        [name for name in uris if name not in read],
        [
            *left_out(rest, _WHY_NOT),
            *left_out(unsearched, "Folders are searched for images that the tables name."),
        ],
        sources_of("", read),
    )


def table_of(source: Source, format: TableFormat) -> Table:
    """The table of a source."""
    return Table(source.uri, format, source.tag)


def check_columns(tables: Sequence[Table], required: Mapping[str, Sequence[str]]) -> None:
    """Raises OptionError if a table lacks a column; a JSON table in its first 1,000 rows. required:
    columns by option."""
    names_of_tables = in_parallel(lambda table: set(table.column_names()), tables)
    for table, names in zip(tables, names_of_tables, strict=True):
        for option, columns in required.items():
            for column in columns:
                if names and column not in names:
                    raise OptionError(
                        f"{option}: {table.uri} has no column "
                        f"{column!r}.{did_you_mean(column, names)}"
                    )


def table_format(
    delimiter: str | None,
    decimal: str = ".",
    encoding: str = "utf-8",
    missing_values: str | None = None,
    quote: str = "double",
) -> TableFormat:
    """The format that the options of these names state. Raises OptionError."""
    delimiter = "\t" if delimiter == "tab" else delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"'):
        raise OptionError(
            f"--delimiter={delimiter!r}: it must be one character other than a quote, or tab."
        )
    if not has_single_bytes(encoding):
        raise OptionError(
            f"--encoding={encoding}: it must be utf-8, or have ASCII and one byte for each "
            "character, like latin-1 or cp1252. Rewrite the tables in one of these."
        )
    missing = (
        MISSING_VALUES
        if missing_values is None
        else tuple(map(str.strip, missing_values.split(",")))
    )
    name = codecs.lookup(encoding).name
    return TableFormat(delimiter, decimal, name, missing, quote != "none")


def add_csv_options(group: argparse._ArgumentGroup) -> None:
    """Adds --delimiter and --quote."""
    group.add_argument("--delimiter", help="a character, or tab (default: comma; tab in .tsv)")
    group.add_argument(
        "--quote",
        choices=("double", "none"),
        default="double",
        help='what encloses cells of csv files: " or nothing (default: double)',
    )


def hint_of_tables(directory: str, files: Iterable[str]) -> str:
    """A sentence about the first table among the files in a directory of images; "" without
    tables."""
    table = next((name for name in files if suffix_of(name) in TEXT_TABLE_SUFFIXES), None)
    if not table:
        return ""
    return (
        f"If the rows of {join(directory, table)} name the images, use python -m "
        "converters.table_to_gcs with --image-column and --label-column."
    )
