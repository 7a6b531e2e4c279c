"""Where the tables are, which columns they have, and which classes stand in them.

tables by split     train.csv, validation.jsonl (or val), test.tsv, ...; train-00.csv, train_1.csv: several a split
one set of tables   *.csv, ..., of whose rows a fraction is for validation"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from converters.table_cells import class_cells
from converters.table_rows import TABLE_SUFFIXES, Row, column_names, table_rows
from converters.validation_share import check_fraction
from pipeline.shards.errors import LabelError, OptionError, RawDataError, did_you_mean
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join

__all__ = ["SPLITS", "RawTables", "check_columns", "find_classes", "find_tables"]

SPLITS = ("train", "validation", "test")
_NAME = re.compile(r"(train|validation|val|test)([-_.].*)?\.\w+")
_MAX_CLASSES = 100_000


@dataclass(frozen=True)
class RawTables:
    """The tables to scan, and the paths of all: also of splits that are not converted now.

    others: those beside them that are of no split."""

    sources: tuple[Source, ...]
    paths: tuple[str, ...]
    others: tuple[str, ...] = ()


def find_tables(raw_data_dir: str, splits: Sequence[str], validation_fraction: float | None) -> RawTables:
    """The sources of the chosen splits; of all that there are if none is chosen.

    validation_fraction: None for tables by split. Raises RawDataError saying what is missing, OptionError."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist. Give the directory of the raw data.")
    files, _ = storage.entries(raw_data_dir)
    names = [name for name in files if name.endswith(TABLE_SUFFIXES) and not name.startswith(".")]
    if not names:
        raise RawDataError(
            f"{raw_data_dir} has no tables ({', '.join(TABLE_SUFFIXES)}). There is: "
            f"{', '.join(list(files)[:8]) or 'nothing'}."
        )
    tables = _by_split(raw_data_dir, names) if validation_fraction is None else _one_set(names, validation_fraction)
    for split in splits:
        if split not in tables:
            raise RawDataError(f"{raw_data_dir} does not have the {split} split. It has: {', '.join(tables)}.")
    sources = [
        Source(split, join(raw_data_dir, name), files[name], 0, files[name].bytes, kind="file")
        for split in SPLITS
        if split in tables and (split in splits or not splits)
        for name in tables[split]
    ]
    paths = sorted({join(raw_data_dir, name) for names in tables.values() for name in names})
    others = {join(raw_data_dir, name) for name in names} - set(paths)
    return RawTables(tuple(sources), tuple(paths), tuple(sorted(others)))


def _by_split(raw_data_dir: str, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            found.setdefault("validation" if match[1] == "val" else match[1], []).append(name)
    if not found:
        raise RawDataError(
            f"{raw_data_dir} has no table of a split, like train.csv or validation-1.jsonl. There is: "
            f"{', '.join(names[:8])}. If these are all rows, give --validation_fraction (0 for train alone)."
        )
    return {split: found[split] for split in SPLITS if split in found}


def _one_set(names: Sequence[str], fraction: float) -> Mapping[str, Sequence[str]]:
    check_fraction(fraction)
    return {"train": names, "validation": names} if fraction else {"train": names}


def check_columns(paths: Iterable[str], wanted: Mapping[str, Sequence[str]], delimiter: str | None) -> None:
    """Raises OptionError for a column that a table has not: one of JSON, in its first 1,000 rows.

    wanted: by the option that names them."""
    for path in paths:
        there = column_names(open_storage(path), path, delimiter)
        for option, columns in wanted.items():
            for column in columns:
                if there and column not in there:
                    raise OptionError(f"{option}: {path} has no column {column!r}.{did_you_mean(column, there)}")


def find_classes(paths: Iterable[str], column: str, separator: str | None, delimiter: str | None) -> tuple[str, ...]:
    """All classes that stand in a column of the tables: sorted, as numbers if all are integers.

    Reads every table once, a row at a time; bad rows have their turn in the conversion. Raises LabelError."""
    names: set[str] = set()
    for path in paths:
        for row in table_rows(open_storage(path), path, delimiter):
            names.update(_classes(row, column, separator))
            if len(names) > _MAX_CLASSES:
                raise LabelError(
                    f"{path}: column {column!r} has over {_MAX_CLASSES:,} different values by line {row.line}. Is it "
                    "a label? For numbers there is --target_columns; else give the classes with --label_file."
                )
    if not names:
        raise LabelError(f"no table has a label in column {column!r}.")
    integers = all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in names)
    return tuple(sorted(names, key=int) if integers else sorted(names))


def _classes(row: Row, column: str, separator: str | None) -> Iterable[str]:
    try:
        return class_cells(row.cells, column, separator)
    except ValueError:
        return ()
