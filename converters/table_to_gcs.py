"""python -m converters.table_to_gcs: csv, tsv, jsonl, Parquet or Arrow tables -> ~100 MB TFRecord shards.

Each row becomes a record, and each column a feature of the same name; or a record has an image or text of one column
with a label, labels, numbers or nothing. Runs on Apache Beam. The same command resumes an interrupted conversion."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from beam_jobs.launch import exit_with
from beam_jobs.plausible import check_places
from converters.command_line import chosen_splits, conversion_parser, parsed, run
from converters.images.options import add_image_options, to_jpeg_of
from converters.raw.class_names import read_class_names
from converters.raw.splits import SPLITS
from converters.table.columns import ALL, KINDS, find_columns, given_values
from converters.table.converter import ImageTableConverter, TextTableConverter
from converters.table.layouts import check_columns, check_delimiter, find_classes, find_tables
from converters.table.row_converter import RowConverter
from converters.table.targets import MultiLabel, Numbers, SingleLabel, Target, Unlabelled
from pipeline.errors import OptionError
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.rows import ARROW_SUFFIXES, is_json
from pipeline.storage.schemes import open_storage
from pipeline.tools.command import Console

EXAMPLES = (
    "--raw-data-dir=tables --output=shards --image-column=file --label-column=animal",
    "--raw-data-dir=houses --output=rows --columns=city=category,note=skip --validation-fraction=0.1",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args, rest = parsed(_parser(), argv)
    wanted = _wanted_columns(args)
    to_jpeg = to_jpeg_of(args)
    splits = chosen_splits(args, SPLITS)
    check_places(args.raw_data_dir, args.gcs_output_path)
    tables = find_tables(args.raw_data_dir, splits, args.validation_fraction)
    check_columns(tables.paths, wanted, args.delimiter)
    others = [_not_converted(path) for path in tables.others if path != args.label_file]
    if not args.image_column and not args.text_column:
        rows = _row_converter(args, tables.paths, to_jpeg)
        notices = ["columns: " + ", ".join(map(str, rows.columns)), *others]
        return run(args, rest, rows, tables.sources, notices=notices)
    for path in (path for path in tables.paths if path.endswith(ARROW_SUFFIXES)):
        raise OptionError(
            f"--image-column and --text-column do not read {path}. Leave them out: each column becomes a feature, and "
            "--columns says what it holds."
        )
    with Console().status("looking for classes"):  # reads every row of every table
        target = _target(args, wanted["--target-columns"], tables.paths)
    shared = (target, args.key_column, args.delimiter, args.validation_fraction)
    if args.text_column:
        converter = TextTableConverter(args.text_column, *shared)
    else:
        converter = ImageTableConverter(args.image_column, *shared, to_jpeg)
    return run(args, rest, converter, tables.sources, notices=others)


def _row_converter(args: argparse.Namespace, paths: Sequence[str], to_jpeg: ToJpeg) -> RowConverter:
    label = args.label_column
    asked = ({label: "category"} if label else {}) | given_values("--columns", args.columns, KINDS)
    with Console().status("looking at the columns"):  # reads every row of every table
        columns = find_columns(paths, args.delimiter, asked, given_values("--missing", args.missing))
    headers = [path for path in paths if not is_json(path)]
    check_columns(headers, {"--columns": [column.name for column in columns]}, args.delimiter)
    if args.label_file:
        names = read_class_names(open_storage(args.label_file), args.label_file)
        columns = tuple(replace(column, names=names) if column.name == label else column for column in columns)
    return RowConverter(columns, label, args.key_column, args.delimiter, args.validation_fraction, to_jpeg)


def _not_converted(path: str) -> str:
    return (
        f"{path} is not converted: its name does not begin with a split. If it lists the classes, one per line, give "
        f"--label-file={path}. If its rows are records, rename it (train-1.csv), or give --validation-fraction to "
        "convert all tables as one set."
    )


def _wanted_columns(args: argparse.Namespace) -> Mapping[str, Sequence[str]]:
    """The columns by option. Raises OptionError for contradictory options."""
    one = {"--image-column": args.image_column, "--text-column": args.text_column}
    if sum(map(bool, one.values())) > 1:
        raise OptionError("give either --image-column or --text-column, or neither: then each column is a feature.")
    of_rows = {"--columns": args.columns, "--missing": args.missing}
    of_content = {"--labels-column": args.labels_column, "--target-columns": args.target_columns}
    for option, value in (of_rows if any(one.values()) else of_content).items():
        if value:
            raise OptionError(
                f"{option}={value}: not with{'out' * (option in of_content)} --image-column or --text-column. Without "
                "either, each column becomes a feature, and --columns says what it holds."
            )
    targets = {"--label-column": args.label_column, "--labels-column": args.labels_column}
    targets["--target-columns"] = args.target_columns
    if sum(map(bool, targets.values())) > 1:
        raise OptionError("give one of --label-column, --labels-column and --target-columns, or none.")
    if args.label_file and not (args.label_column or args.labels_column):
        raise OptionError("--label-file names the classes of --label-column or --labels-column: give one of them.")
    check_delimiter(args.delimiter)
    if not args.label_separator:
        raise OptionError("--label-separator is empty; it must have at least one character.")
    numbers = [name.strip() for name in (args.target_columns or "").split(",")] if args.target_columns else []
    if len(set(numbers)) < len(numbers) or "" in numbers:
        raise OptionError(f"--target-columns={args.target_columns}: a column is empty, or is listed twice.")
    single = {**one, "--key-column": args.key_column, **targets}
    del single["--target-columns"]
    return {**{option: [name] for option, name in single.items() if name}, "--target-columns": numbers}


def _target(args: argparse.Namespace, numbers: Sequence[str], paths: Sequence[str]) -> Target:
    """The labels or numbers, under the keys that readers of images or of texts expect."""
    images = bool(args.image_column)
    if numbers:
        return Numbers(tuple(numbers))
    column, separator = args.label_column or args.labels_column, args.label_separator if args.labels_column else None
    if not column:
        return Unlabelled()
    if args.label_file:
        classes = read_class_names(open_storage(args.label_file), args.label_file)
    else:
        classes = find_classes(paths, column, separator, args.delimiter)
    if separator:
        return MultiLabel(column, classes, separator, "image/class/labels" if images else "labels")
    if images:  # 0 is background there
        return SingleLabel(column, classes, "image/class/label", 1, "image/class/text")
    return SingleLabel(column, classes)


def _parser() -> argparse.ArgumentParser:
    raw_data = "directory of train.csv, validation.jsonl, test-1.csv, ..."
    fraction = "convert all tables as one set: this fraction of their rows, chosen by a hash of their keys"
    parser = conversion_parser("table_to_gcs", __doc__, EXAMPLES, SPLITS, raw_data, fraction=fraction)
    parser.add_argument("--delimiter", help="of csv files (default: comma; tab in .tsv)")
    columns = parser.add_argument_group("columns", "Each becomes a feature. What it holds is found in its cells.")
    kinds = f"what columns hold: {', '.join(KINDS)}; {ALL} is for all others. Or a .json file with an object of these"
    columns.add_argument("--columns", metavar="COLUMN=KIND,...", help=kinds)
    absent = "what to write where a number or class is missing (default: NaN in a float32, no class; no integer)"
    columns.add_argument("--missing", metavar="COLUMN=VALUE,...", help=absent)
    told = "In place of all columns, give either --image-column or --text-column."
    content = parser.add_argument_group("content of a record", told)
    content.add_argument("--image-column", help="column of image paths: relative to the table, absolute, or gs://")
    content.add_argument("--text-column", help="column of texts")
    content.add_argument("--key-column", help="column of keys (default: the path of the image; else file and line)")
    target = parser.add_argument_group("labels or numbers", "Give at most one of the three column options.")
    target.add_argument("--label-column", help="column of class names, one per row")
    target.add_argument(
        "--labels-column", help="column of any number of class names per row: a list in JSON, else a|b|c"
    )
    target.add_argument("--target-columns", help="comma-separated columns of numbers")
    target.add_argument("--label-separator", default="|", help="separates the names in --labels-column (default: |)")
    target.add_argument(
        "--label-file", help="all classes in order, one per line (default: those in the tables, sorted)"
    )
    add_image_options(parser)
    return parser


if __name__ == "__main__":
    exit_with(main)
