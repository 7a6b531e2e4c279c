"""python -m converters.tfrecord_to_gcs: existing TFRecord files -> ~100 MB shards of the same
records.

Records are copied byte for byte. Runs on Apache Beam. The same command resumes an interrupted
conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace

from beam_jobs.converter import Source
from beam_jobs.launch import exit_with
from converters.command_line import chosen_splits, conversion_parser, parsed, run, scratch_of
from converters.tfrecord import CHECKS, find_raw
from pipeline.checks import did_you_mean
from pipeline.console.console import Console, say
from pipeline.console.schema_options import add_schema_options, check_label_options
from pipeline.errors import OptionError
from pipeline.shards.schema import Schema
from pipeline.sources.merged_schemas import read_labels
from pipeline.sources.named_splits import parse_assignment

EXAMPLES = (
    "--raw-data-dir=tfrecords --output=shards --dry-run",
    "--raw-data-dir=tfrecords --output=shards --pattern='train=train-*'",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    patterns = [parse_assignment("--pattern", text) for text in args.pattern]
    check_label_options(args)
    with scratch_of(args, args.raw_data_dir) as scratch:
        converter, sources = find_raw(
            args.raw_data_dir, chosen_splits(args), patterns, scratch, args.schema_file
        )
        set_num_shards(args, sources)
        schema = converter.schema
        _report(schema, args.dry_run)
        converter = replace(converter, name=args.name or converter.name, check=args.check)
        if args.labels_file:
            labels = read_labels(args.labels_file, args.label_key, args.label_base, schema)
            converter = replace(converter, labels=labels)
        return run(args, converter, sources, scratch, used=r"^_|\.(json|txt)$")


def _report(schema: Schema, complete: bool) -> None:
    """Prints the schema on stderr in the form that --schema-file takes, if `complete`; a note if it
    is opaque."""
    console = Console(stderr=True)
    if schema.opaque:
        say(
            console,
            (
                "note: the records are not tf.train.Examples: they are copied without looking into "
                "them."
            ),
        )
    elif complete:
        features = {"name": schema.name, "features": schema.to_json()["features"]}
        say(console, f"schema: {json.dumps(features)}")


def _parser() -> argparse.ArgumentParser:
    raw_data = "directory of the files, and of a manifest or TFDS's features.json if there is one"
    parser = conversion_parser("tfrecord_to_gcs", __doc__, EXAMPLES, (), raw_data)
    parser.add_argument(
        "--pattern",
        action="append",
        default=[],
        metavar="SPLIT=GLOB",
        help=(
            "files of a split, relative to the directory, if their names do not show the split; "
            "may be repeated"
        ),
    )
    add_record_options(parser)
    parser.add_argument(
        "--name", help="name of the dataset (default: the source's own, or tfrecord)"
    )
    add_schema_options(parser)
    return parser


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Adds --num-shards, for splits of any name, and --check."""
    parser.add_argument(
        "--num-shards",
        action="append",
        default=[],
        metavar="SPLIT=N",
        help="overrides --target-shard-bytes; may be repeated",
    )
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="schema",
        help=(
            "what to check in addition to checksums: the schema (~3 us per feature), or nothing "
            "(default: schema)"
        ),
    )


def set_num_shards(args: argparse.Namespace, sources: Sequence[Source]) -> None:
    """Stores --num-shards where `run` reads it. Raises OptionError for an unknown split and for a
    bad number. A split that --splits leaves out is no error: users repeat a command with some of
    its splits."""
    known = {source.split for source in sources}
    chosen = chosen_splits(args)
    for split, number in (parse_assignment("--num-shards", text) for text in args.num_shards):
        if not number.isdecimal():
            raise OptionError(f"--num-shards={split}={number}: {number!r} is not a number.")
        if not chosen and split not in known:
            raise OptionError(
                f"--num-shards={split}={number}: there is no split "
                f"{split!r}.{did_you_mean(split, known)}"
            )
        setattr(args, f"num_{split}_shards", int(number))


if __name__ == "__main__":
    exit_with(main)
