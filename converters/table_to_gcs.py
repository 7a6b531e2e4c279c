"""python -m converters.table_to_gcs: csv, tsv, jsonl, Parquet or Arrow tables -> ~100 MB TFRecord
shards.

Each row becomes a record, and each column a feature of the same name; or a record has an image or
text of one column with a label, labels, numbers or nothing. Runs on Apache Beam. The same command
resumes an interrupted conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from beam_jobs.launch import exit_with
from beam_jobs.split.summary import check_places
from converters.command_line import chosen_splits, conversion_parser, parsed, run
from converters.images.image_options import add_image_options, to_jpeg_of
from converters.raw.class_names import read_class_names
from converters.raw.files import first_few, left_out
from converters.raw.splits import SPLITS, HeldOut, held_out_of
from converters.table.columns import CLASS_NAME, KINDS, SKIP, Column
from converters.table.converter import ImageTableConverter
from converters.table.finding import ALL, Finder, found_columns, given_values
from converters.table.held_out import SPLIT_BY
from converters.table.layouts import add_csv_options, check_columns, find_tables, table_format
from converters.table.row_converter import RowConverter
from converters.table.survey import survey_tables
from pipeline.console.console import Console
from pipeline.errors import LabelError, OptionError
from pipeline.raw.rows import Table, is_json
from pipeline.storage.storage import join

EXAMPLES = (
    "--raw-data-dir=tables --output=shards --image-column=file --label-column=animal",
    (
        "--raw-data-dir=houses --output=rows --columns=city=category,note=skip "
        "--validation-fraction=0.1"
    ),
)
_OF_OTHERS = (
    "columns of other tables, also of splits that --splits leaves out, because all get the same "
    "features (--columns NAME=skip leaves a column out; or move the table away)"
)
_IS_ODD = re.compile(r"^\s|\s$|^[+-]?\d*\.\d+$")
_ODD = "columns are named {}: the first line must have the names, and spaces belong to the cells."
_NO_SPLIT = (
    "The names of tables begin with a split. Rename those with records (train-1.csv), or give "
    "--validation-fraction to convert all as one set. --label-file names a list of classes."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    required = _required_columns(args)
    to_jpeg = to_jpeg_of(args)
    splits = chosen_splits(args, SPLITS)
    check_places(args.raw_data_dir, args.output)
    held_out = held_out_of(args, columns=True)
    format = table_format(
        args.delimiter, args.decimal, args.encoding, args.missing_values, args.quote
    )
    of_images = bool(args.image_column)
    raw = find_tables(args.raw_data_dir, splits, held_out, format, of_images=of_images)
    check_columns(raw.tables, required)
    if args.missing_values and all(table.is_arrow for table in raw.tables):
        raise OptionError("--missing-values: it is for text; Parquet and Arrow have nulls instead.")
    others = [name for name in raw.others if join(args.raw_data_dir, name) != args.label_file]
    notices = [*left_out(others, _NO_SPLIT), *raw.notices]
    shared = (args.key_column, format, held_out, to_jpeg)
    finder = _finder(args)
    found, pieces = survey_tables(args, raw, format, finder)
    columns = found_columns(found, raw.tables, notices) if finder else {}
    if args.image_column:
        converter = ImageTableConverter(args.image_column, _target(args, columns), *shared)
    elif args.text_column:
        text = Column(args.text_column, "text", key="text", required=True)
        converter = RowConverter((text, *_target(args, columns)), *shared, "text_table")
    else:
        columns = _all_columns(args, raw.tables, columns)
        stored = args.image_format or "stored"
        features = tuple(column for column in columns if column.kind != SKIP)
        converter = RowConverter(features, *shared, image_format=stored)
        seen = (f"{column}{examples}" for column, examples in columns.items())
        odd = [repr(each.name) for each in columns if _IS_ODD.search(each.name)]
        odd = [_ODD.format(first_few(odd))] * bool(odd)
        notices = ["columns: " + ", ".join(seen), *odd, *notices]
    if args.stratify:
        with Console().status("looking at the classes"):  # of every row
            converter = converter.stratified(raw.sources)
    pieces = {} if args.image_column else pieces
    return run(args, converter, raw.sources, notices=notices, pieces=pieces)


def _finder(args: argparse.Namespace) -> Finder | None:
    """What is to be found in the tables; None if nothing is."""
    kinds = given_values("--columns", args.columns, KINDS)
    missing = given_values("--missing", args.missing)
    label = args.label_column
    separator = None
    defaults = dict.fromkeys(missing, kinds.get(ALL)) | ({label: "category"} if label else {})
    if args.image_column or args.text_column:
        label = label or args.labels_column
        if not label or args.label_file:
            return None
        defaults = {label: "category", ALL: SKIP}
        separator = args.label_separator if args.labels_column else None
    return Finder(defaults | kinds, separator, args.max_bad_records)


def _all_columns(
    args: argparse.Namespace, tables: Sequence[Table], found: Mapping[Column, str]
) -> Mapping[Column, str]:
    """All columns, which become features, and what was seen of their cells."""
    label = args.label_column
    missing = given_values("--missing", args.missing)
    columns = dict[Column, str]()
    for column, seen in found.items():
        if column.name in missing and column.kind not in ("float32", "int64", "category"):
            raise OptionError(
                f"--missing: {column.name!r} holds {column.kind}. Give it numbers and categories."
            )
        columns[replace(column, missing=missing.get(column.name))] = seen
    headers = [table for table in tables if not is_json(table.uri)]
    names = [column.name for column in columns if column.kind != SKIP]
    check_columns(headers, {_OF_OTHERS: names})
    for name in names:
        if name.startswith("_"):
            raise OptionError(
                f"the column {name!r}: names that begin with _ are reserved, so no batch would "
                f"have it. Rename it, or leave it out: --columns {name}={SKIP}."
            )
    return {
        _as_label(args, column) if column.name == label else column: seen
        for column, seen in columns.items()
    }


def _as_label(args: argparse.Namespace, column: Column) -> Column:
    """The column, with its classes and without missing ones. Raises LabelError."""
    file = args.label_file
    names = read_class_names(file) if file else column.names
    if column.kind == "category" and not names:
        raise LabelError(f"no table has a label in column {column.name!r}.")
    return replace(column, names=names, required=True)


def _required_columns(args: argparse.Namespace) -> Mapping[str, Sequence[str]]:
    """The columns by option. Raises OptionError for contradictory options."""
    of_content = bool(args.image_column or args.text_column)
    for name in ("columns", "missing") if of_content else ("labels_column", "target_columns"):
        if value := getattr(args, name):
            raise OptionError(
                f"{_option(name)}={value}: not with{'out' * (not of_content)} --image-column or "
                "--text-column. Without either, each column becomes a feature, and --columns says "
                "what it holds."
            )
    if args.label_file and not (args.label_column or args.labels_column):
        raise OptionError(
            "--label-file names the classes of --label-column or --labels-column: give one of them."
        )
    if of_content and args.image_format == "stored":
        raise OptionError(
            "--image-format=stored: not with --image-column, whose images become JPEGs, or "
            "--text-column. Without either, each column becomes a feature, and its images can stay "
            "as stored."
        )
    if args.split_by == "folder" and not args.image_column:
        raise OptionError("--split-by=folder: rows are in no folder. It is for --image-column.")
    if args.stratify and not args.label_column:
        raise OptionError("--stratify: give the --label-column of the classes.")
    if not args.label_separator:
        raise OptionError("--label-separator is empty; it must have at least one character.")
    numbers = _target_columns(args)
    if len(set(numbers)) < len(numbers) or "" in numbers:
        raise OptionError(
            f"--target-columns={args.target_columns}: a column is empty, or is listed twice."
        )
    single = ("image_column", "text_column", "key_column", "label_column", "labels_column")
    required = {_option(name): [getattr(args, name)] for name in single if getattr(args, name)}
    by = HeldOut(0.0, by=args.split_by).column
    return {**required, "--target-columns": numbers, "--split-by": [by] if by else []}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _target(args: argparse.Namespace, found: Iterable[Column]) -> tuple[Column, ...]:
    """The labels or numbers, under the keys that readers of images or of texts expect."""
    if numbers := _target_columns(args):
        return (
            Column(args.target_columns, "float32", (len(numbers),), key="target", parts=numbers),
        )
    name = args.label_column or args.labels_column
    prefix = "image/class/" if args.image_column else ""
    if not name:
        return ()
    separator = args.label_separator if args.labels_column else None
    column = Column(name, "category", separator=separator)
    if not args.label_file:
        (classes,) = found
        column = replace(column, names=classes.names)
    column = _as_label(args, column)
    if separator:
        return (replace(column, shape=(None,), key=f"{prefix}labels"),)
    if not prefix:
        return (replace(column, key="label"),)
    label = replace(column, key=f"{prefix}label", base=1)  # 0 is background
    return (label, replace(label, kind=CLASS_NAME, key=f"{prefix}text"))


def _target_columns(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(map(str.strip, args.target_columns.split(","))) if args.target_columns else ()


def _parser() -> argparse.ArgumentParser:
    raw_data = "directory of train.csv, validation.parquet, test-1.jsonl.gz, train/*.arrow, ..."
    fraction = (
        "convert all tables as one set: this fraction of rows, chosen by a hash of keys or cells"
    )
    parser = conversion_parser(
        "table_to_gcs", __doc__, EXAMPLES, SPLITS, raw_data, fraction=fraction, split_by=SPLIT_BY
    )
    texts = parser.add_argument_group("texts of csv, tsv and jsonl, plain or compressed")
    add_csv_options(texts)
    texts.add_argument("--decimal", choices=".,", default=".", help="mark in numbers (default: .)")
    texts.add_argument(
        "--encoding", default="utf-8", help="such as latin-1 or cp1252 (default: utf-8)"
    )
    texts.add_argument(
        "--missing-values",
        metavar="TEXT,...",
        help="cells without a value in columns of numbers (default: NA, null, ?, - and the like)",
    )
    columns = parser.add_argument_group(
        "columns", "Each becomes a feature. What it holds is found in its cells."
    )
    columns.add_argument(
        "--columns",
        metavar="COLUMN=KIND,...",
        help=(
            f"what columns hold: {', '.join(KINDS)}; {ALL} is for all others. Or a .json file with "
            "an object of these"
        ),
    )
    columns.add_argument(
        "--missing",
        metavar="COLUMN=VALUE,...",
        help=(
            "what to write where a number or class is missing (default: NaN in a float32, no "
            "class; no integer)"
        ),
    )
    columns.add_argument(
        "--image-format",
        choices=("stored", "jpeg"),
        help=(
            "of images: stored keeps PNG files, and the pixels of other lossless ones as PNG; jpeg "
            "makes JPEGs of all, as --image-column does (default: stored)"
        ),
    )
    content = parser.add_argument_group(
        "content of a record",
        "In place of all columns, give either --image-column or --text-column.",
    )
    content.add_argument(
        "--key-column", help="column of keys (default: the path of the image; else file and line)"
    )
    content = content.add_mutually_exclusive_group()
    content.add_argument(
        "--image-column",
        help="column of image paths: relative to the table, absolute, or in a bucket",
    )
    content.add_argument("--text-column", help="column of texts")
    targets = parser.add_argument_group(
        "labels or numbers", "Give at most one of the three column options."
    )
    target = targets.add_mutually_exclusive_group()
    target.add_argument("--label-column", help="column of class names, one per row")
    target.add_argument(
        "--labels-column",
        help="column of any number of class names per row: a list in JSON, else a|b|c",
    )
    target.add_argument("--target-columns", help="comma-separated columns of numbers")
    targets.add_argument(
        "--label-separator", default="|", help="separates the names in --labels-column (default: |)"
    )
    targets.add_argument(
        "--label-file",
        help="all classes in order, one per line (default: those in the tables, sorted)",
    )
    add_image_options(parser)
    return parser


if __name__ == "__main__":
    exit_with(main)
