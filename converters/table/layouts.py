"""Finds the tables and their columns. Hints at tables where other data is expected.

tables by split     train.csv, validation.jsonl (or val), test.tsv, ...; several per split:
train-00.csv, train_1.csv one set of tables   *.csv, ...; a fraction of the rows is for
validation"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from converters.raw.files import HeldOut, by_split, chosen, first_few, open_raw_data
from pipeline.checks import did_you_mean
from pipeline.errors import OptionError, RawDataError
from pipeline.raw.rows import TABLE_SUFFIXES, TEXT_TABLE_SUFFIXES, column_names
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import in_parallel, join

_NAME = re.compile(r"(train|validation|val|test)([-_.].*)?\.\w+")


@dataclass(frozen=True)
class RawTables:
    """The tables to scan, and the paths of all, including those of splits not chosen. others:
    tables of no split."""

    sources: Sequence[Source]
    paths: Sequence[str]
    others: Sequence[str]


def find_tables(raw_data_dir: str, splits: Sequence[str], held_out: HeldOut | None) -> RawTables:
    """The sources of the chosen splits, or of all splits that exist. held_out: None for tables by
    split.

    Raises RawDataError if something is missing, OptionError."""
    storage = open_raw_data(raw_data_dir)
    files, _ = storage.entries(raw_data_dir)
    names = [name for name in files if name.endswith(TABLE_SUFFIXES) and not name.startswith(".")]
    if not names:
        raise RawDataError(
            f"{raw_data_dir} has no tables ({', '.join(TABLE_SUFFIXES)}). It has: "
            f"{first_few(files)}."
        )
    examples = "table of a split, like train.csv or validation-1.jsonl"
    tables = by_split(raw_data_dir, names, held_out, _NAME, examples)
    sources = [
        Source(split, join(raw_data_dir, name), files[name], bytes=files[name].bytes, kind="file")
        for split in chosen(raw_data_dir, splits, tables)
        for name in tables[split]
    ]
    paths = sorted({join(raw_data_dir, name) for names in tables.values() for name in names})
    others = {join(raw_data_dir, name) for name in names} - set(paths)
    return RawTables(sources, paths, sorted(others))


def check_columns(
    paths: Sequence[str], required: Mapping[str, Sequence[str]], delimiter: str | None
) -> None:
    """Raises OptionError if a table lacks a column; a JSON table in its first 1,000 rows. required:
    columns by option."""
    names_of_tables = in_parallel(
        lambda path: set(column_names(open_storage(path), path, delimiter)), paths
    )
    for path, names in zip(paths, names_of_tables, strict=True):
        for option, columns in required.items():
            for column in columns:
                if names and column not in names:
                    raise OptionError(
                        f"{option}: {path} has no column {column!r}.{did_you_mean(column, names)}"
                    )


def check_delimiter(delimiter: str | None) -> None:
    """Raises OptionError unless it is one character, or None."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"'):
        raise OptionError(
            f"--delimiter={delimiter!r}: it must be one character other than a quote."
        )


def hint_of_tables(directory: str, files: Iterable[str]) -> str:
    """A sentence about the first table among the files in a directory of images; "" without
    tables."""
    table = next((name for name in files if name.endswith(TEXT_TABLE_SUFFIXES)), None)
    if not table:
        return ""
    return (
        f"If the rows of {join(directory, table)} name the images, use python -m "
        "converters.table_to_gcs with --image-column and --label-column."
    )
