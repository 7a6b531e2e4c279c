"""Command-line options that tfrecord_to_gcs and tfds_to_gcs share.

Both pass records on unchanged, and the names of their splits come from the raw data."""

import argparse
from collections.abc import Sequence

from beam_jobs.converter import Source
from converters.command_line import chosen_splits
from converters.tfrecord import CHECKS
from pipeline.command import Console
from pipeline.shards.errors import OptionError, did_you_mean
from pipeline.sources.named_splits import parse_assignment

__all__ = ["add_check_option", "add_num_shards_option", "set_num_shards"]


def add_num_shards_option(parser: argparse.ArgumentParser) -> None:
    """The option of sources whose splits have any names."""
    parser.add_argument(
        "--num_shards",
        action="append",
        default=[],
        metavar="SPLIT=N",
        help="overrides --target_shard_bytes; may be repeated",
    )


def set_num_shards(args: argparse.Namespace, sources: Sequence[Source]) -> None:
    """Puts --num_shards where `run` looks for them. Raises OptionError, also for a split that no source is of.

    One that --splits leaves out is only noted: a command may be repeated with some of its splits."""
    splits, chosen = {source.split for source in sources}, chosen_splits(args)
    for split, number in (parse_assignment("--num_shards", text) for text in args.num_shards):
        if not number.isdecimal():
            raise OptionError(f"--num_shards={split}={number}: {number!r} is not a number.")
        if chosen and split not in chosen:
            Console(stderr=True).print(f"note: --num_shards={split}={number} has no effect: --splits leaves it out.")
        elif split not in splits:
            raise OptionError(
                f"--num_shards={split}={number}: no split {split!r} is here.{did_you_mean(split, splits)}"
            )
        setattr(args, f"num_{split}_shards", int(number))


def add_check_option(parser: argparse.ArgumentParser) -> None:
    """The option of records that are passed on."""
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="schema",
        help="what a record must fit beside its checksums: the schema (~3 us a feature), or nothing (default: schema)",
    )
