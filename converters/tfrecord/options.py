"""Command-line options that tfrecord_to_gcs and tfds_to_gcs share.

Both copy records unchanged, and take the names of splits from the raw data."""

import argparse
from collections.abc import Sequence

from beam_jobs.converter import Source
from converters.command_line import chosen_splits
from converters.tfrecord.converter import CHECKS
from pipeline.errors import OptionError, did_you_mean
from pipeline.sources.named_splits import parse_assignment
from pipeline.tools.command import Console

__all__ = ["add_record_options", "set_num_shards"]


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Adds --num_shards, for splits of any name, and --check."""
    parser.add_argument(
        "--num_shards",
        action="append",
        default=[],
        metavar="SPLIT=N",
        help="overrides --target_shard_bytes; may be repeated",
    )
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="schema",
        help="what to check in addition to checksums: the schema (~3 us per feature), or nothing (default: schema)",
    )


def set_num_shards(args: argparse.Namespace, sources: Sequence[Source]) -> None:
    """Stores --num_shards where `run` reads it. Raises OptionError for an unknown split and for a bad number.

    A split that --splits leaves out is only noted: users repeat a command with some of its splits."""
    splits, chosen = {source.split for source in sources}, chosen_splits(args)
    for split, number in (parse_assignment("--num_shards", text) for text in args.num_shards):
        if not number.isdecimal():
            raise OptionError(f"--num_shards={split}={number}: {number!r} is not a number.")
        if chosen and split not in chosen:
            Console(stderr=True).print(f"note: --num_shards={split}={number} has no effect: --splits leaves it out.")
        elif split not in splits:
            raise OptionError(
                f"--num_shards={split}={number}: there is no split {split!r}.{did_you_mean(split, splits)}"
            )
        setattr(args, f"num_{split}_shards", int(number))
