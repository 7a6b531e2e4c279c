"""python -m converters.tfrecord_to_gcs: existing TFRecord files -> ~100 MB shards of the same records.

On Apache Beam: run the same command again and it goes on where it stopped."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import json
import sys
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.command_line import add_conversion_options, chosen_splits, run, scratch_of
from converters.tfrecord import TfrecordConverter
from converters.tfrecord_layouts import find_raw
from converters.tfrecord_options import add_check_option, add_num_shards_option, set_num_shards
from pipeline.command import Console
from pipeline.shards.errors import OptionError
from pipeline.shards.schema import Schema
from pipeline.sources.infer import read_labels
from pipeline.sources.named_splits import parse_assignment

__all__ = ["main", "report_schema"]


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or with --dry_run says what it would do. Returns the exit status. Raises InfeedError."""
    args, rest = _parser().parse_known_args(argv)
    patterns = [parse_assignment("--pattern", text) for text in args.pattern]
    if (args.labels_file is None) != (args.label_key is None):
        raise OptionError("--labels_file and --label_key belong together: give both, or neither.")
    with scratch_of(args, args.raw_data_dir) as scratch:
        raw = find_raw(args.raw_data_dir, chosen_splits(args), patterns, scratch, args.schema_file)
        set_num_shards(args, raw.sources)
        report_schema(raw.schema, args.dry_run)
        labels = raw.labels
        if args.labels_file:
            labels = read_labels(args.labels_file, args.label_key, args.label_base, raw.schema)
        converter = TfrecordConverter(args.name or raw.name, raw.schema, labels, args.check)
        return run(args, rest, converter, raw.sources, scratch)


def report_schema(schema: Schema, whole: bool) -> None:
    """One line on stderr where records are not looked into; with `whole`, the schema as --schema_file takes it."""
    console = Console(stderr=True)
    if schema.opaque:
        console.print("note: the records are no tf.train.Example: they are passed on, and never looked into.")
    elif whole:
        features = {"name": schema.name, "features": schema.to_json()["features"]}
        console.print(f"schema: {json.dumps(features)}", markup=False, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.tfrecord_to_gcs",
        description="Re-shards TFRecord files, compressed or not. Records are passed on byte by byte.",
        allow_abbrev=False,
    )
    add_conversion_options(parser, (), "directory of the files; a manifest or TFDS's features.json there is used")
    parser.add_argument(
        "--pattern",
        action="append",
        default=[],
        metavar="SPLIT=GLOB",
        help="the files of a split, by names below the directory, where their names do not tell it; may be repeated",
    )
    add_num_shards_option(parser)
    add_check_option(parser)
    records = parser.add_argument_group("records")
    records.add_argument("--schema_file", help="JSON of the schema, or a manifest (default: from a sample of records)")
    records.add_argument("--labels_file", help="names of the labels, one a line")
    records.add_argument("--label_key", help="the feature that these name")
    records.add_argument("--label_base", type=int, default=0, help="the number of the first name (default: 0)")
    records.add_argument("--name", help="of the dataset (default: the source's own, or tfrecord)")
    return parser


if __name__ == "__main__":
    # DoFns and converters live in modules of their own: a class of __main__ would not be found by worker processes.
    sys.argv[0] = "tfrecord_to_gcs"
    exit_with(main)
