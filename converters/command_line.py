"""What the commands *_to_gcs share: the common options, and running the job or its --dry_run.

Commands call `exit_with(main)` only if run as __main__, and define nothing that travels to workers: these could not
import a class of __main__. Knows no converter."""

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from beam_jobs.conversion_job import Waiting
from beam_jobs.converter import Converter, Packer, Source
from beam_jobs.launch import dry_run, launch
from beam_jobs.options import add_options, beam_options, make_job
from beam_jobs.plausible import check_places
from beam_jobs.runners import find_runner
from beam_jobs.scratch import Scratch
from pipeline.errors import OptionError, did_you_mean, printable
from pipeline.sizes import parse_bytes
from pipeline.tools.command import Console, Parser


def conversion_parser(
    command: str,
    doc: str | None,
    examples: Sequence[str],
    splits: Sequence[str],
    raw_data: str,
    *,
    raw_option: str = "--raw_data_dir DIR",
    fraction: str = "",
) -> argparse.ArgumentParser:
    """The parser of a command, with the options that all commands share. doc and examples: as for Parser.

    raw_data: help for the raw_option. fraction: what --validation_fraction does, if there is one."""
    parser = Parser(f"converters.{command}", doc, examples, usage=f"%(prog)s {raw_option} --output DIR [options]")
    option, metavar = raw_option.split()
    parser.add_argument(option, required=True, metavar=metavar, help=raw_data)
    parser.add_argument(
        "--output",
        "--gcs_output_path",  # as in tensorflow/tpu
        dest="gcs_output_path",
        required=True,
        metavar="DIR",
        help="directory for the shards: local, or gs://bucket/dir",
    )
    known = f" subset of {', '.join(splits)}" if splits else ""
    parser.add_argument("--splits", help=f"comma-separated{known} (default: all that are found)")
    for split in splits:
        parser.add_argument(f"--num_{split}_shards", type=int, help="overrides --target_shard_bytes")
    if fraction:
        help_text = f"{fraction}, becomes the validation split, the rest train (0: train only)"
        parser.add_argument("--validation_fraction", type=float, help=help_text)
    add_options(parser)
    return parser


def chosen_splits(args: argparse.Namespace, known: Sequence[str] = ()) -> list[str]:
    """The splits in --splits; [] without the option. known: () if splits may have any name.

    Raises OptionError for an unknown split, and for an option that lists none."""
    if args.splits is None:
        return []
    splits = [split.strip() for split in args.splits.split(",") if split.strip()]
    for split in splits:
        if known and split not in known:
            raise OptionError(f"--splits={args.splits}: unknown split {split!r}.{did_you_mean(split, known)}")
    if not splits:
        allowed = f" Known: {', '.join(known)}." if known else ""
        raise OptionError(f"--splits={args.splits}: no split was chosen.{allowed}")
    return splits


@contextlib.contextmanager
def scratch_of(args: argparse.Namespace, raw_data: str) -> Iterator[Scratch | None]:
    """The scratch directory for uncompressed raw data, as a context; None in a dry run.

    Raises OptionError, before anything is written, if raw data and output contain each other."""
    check_places(raw_data, args.gcs_output_path)
    if args.dry_run:
        yield None
        return
    most = args.max_uncompressed_bytes
    with Scratch(args.gcs_output_path, parse_bytes(most) if most else None) as scratch:
        yield scratch


def run(
    args: argparse.Namespace,
    rest: Sequence[str],
    converter: Converter | Packer,
    sources: Sequence[Source],
    scratch: Scratch | None = None,
    expected: Mapping[str, int] | None = None,
    notices: Sequence[str] = (),
) -> int:
    """Converts the sources, or reports a --dry_run. Returns the exit status: 1 if a dry run predicts a failure.

    rest: Beam's options. scratch: has the temporary files among the sources. expected: required number of records per
    split. notices: printed first."""
    splits = {source.split for source in sources}
    wanted = {split: getattr(args, f"num_{split}_shards", None) for split in splits}
    num_shards = {split: number for split, number in wanted.items() if number is not None}
    for split, number in num_shards.items():
        if number < 1:
            raise OptionError(f"--num_{split}_shards={number}: must be at least 1.")
    fields = {"sources": tuple(sources), "num_shards": num_shards, "scratch": scratch.paths if scratch else ()}
    job, console = make_job(args, converter, expected=expected, **fields), Console()
    for notice in notices:
        console.print(f"note: {printable(notice)}", markup=False, soft_wrap=True)
    if args.dry_run:
        return 0 if dry_run(job, console) else 1
    options = beam_options(args, rest)
    if scratch and find_runner(args.runner).leaves:
        scratch.keep()
    launch(job, options, console, Waiting(args.detach, args.cancel_on_interrupt))
    return 0
