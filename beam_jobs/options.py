"""The options common to all conversions; the remaining ones go to Beam.

Imports Beam only to run a job, so that --help and --dry_run work without it."""

import argparse
import logging
import uuid
from collections.abc import Sequence
from typing import Any

from beam_jobs.conversion_job import ConversionJob
from beam_jobs.converter import Converter, Packer
from beam_jobs.runners import RUNNERS, Preset, find_runner
from pipeline.errors import InfeedError, OptionError, did_you_mean
from pipeline.installing import how_to_install
from pipeline.sizes import parse_bytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the common options."""
    shards = parser.add_argument_group("shards")
    shards.add_argument("--target_shard_bytes", default="100MB", help="size of a shard (default: %(default)s)")
    shards.add_argument("--seed", type=int, default=0, help="determines the order of records (default: 0)")
    again = parser.add_argument_group("an output directory that already contains shards")
    overwrite = "replace splits written with other options or from other raw data; removes exactly their files"
    again.add_argument("--overwrite", action="store_true", help=overwrite)
    again.add_argument(
        "--verify_existing",
        action="store_true",
        help="read finished shards and their raw data instead of comparing sizes and times; rewrite damaged "
        "shards. Needed after copying the raw data, which changes its times",
    )
    compressed = parser.add_argument_group("compressed raw data")
    compressed.add_argument(
        "--max_uncompressed_bytes",
        metavar="SIZE",
        help="limit for each uncompressed .gz file in <output>/_scratch (default: 100 times its size, at least 1GiB)",
    )
    bad = parser.add_argument_group("bad records")
    bad.add_argument("--max_bad_records", type=int, default=0, help="allowed per split; all are listed (default: 0)")
    run = parser.add_argument_group("running", "All other --options go to Apache Beam unchanged.")
    run.add_argument("--dry_run", action="store_true", help="print records, bytes and shards; write nothing")
    presets = "; ".join(f"{name}: {preset.help}" for name, preset in RUNNERS.items())
    run.add_argument("--runner", default="local", help=f"{presets}; or any Beam runner (default: local)")
    processes = ", ".join(f"--runner={name}" for name, preset in RUNNERS.items() if preset.processes)
    run.add_argument("--local_processes", type=int, default=1, help=f"worker processes for {processes} (default: 1)")
    leaving = ", ".join(f"--runner={name}" for name, preset in RUNNERS.items() if preset.leaves)
    run.add_argument("--detach", action="store_true", help=f"{leaving}: submit the job and exit")
    run.add_argument("--cancel_on_interrupt", action="store_true", help=f"{leaving}: Ctrl-C cancels the job")


def make_job(args: argparse.Namespace, converter: Converter | Packer, **fields: Any) -> ConversionJob:
    """The job described by the common options. fields: of the job, which no option states. Raises OptionError."""
    if args.seed < 0:
        raise OptionError(f"--seed={args.seed}: must be at least 0.")
    if args.max_bad_records < 0:
        raise OptionError(f"--max_bad_records={args.max_bad_records}: must be at least 0.")
    if not fields["sources"]:
        raise OptionError("nothing to convert: the raw data has none of the chosen splits.")
    return ConversionJob(
        converter=converter,
        output_dir=args.gcs_output_path,
        target_shard_bytes=parse_bytes(args.target_shard_bytes),
        seed=args.seed,
        max_bad_records=args.max_bad_records,
        overwrite=args.overwrite,
        verify_existing=args.verify_existing,
        run_id=uuid.uuid4().hex,
        **fields,
    )


def beam_options(args: argparse.Namespace, rest: Sequence[str]):
    """Beam's PipelineOptions for the chosen runner. Raises OptionError for options that Beam does not have either."""
    logging.disable(logging.WARNING)  # without its [gcp] extra, Beam warns about clients that we do not use
    try:
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as e:
        raise InfeedError(f"conversion needs Apache Beam ({e}). Install it: {how_to_install('convert')}.") from e
    finally:
        logging.disable(logging.NOTSET)
    preset = find_runner(args.runner)
    _check_of_preset(args, preset)
    _check_known(PipelineOptions, args, rest)
    options = PipelineOptions([f"--runner={preset.runner}", *preset.flags(args), *rest])
    preset.check(args, options)
    return options


def _check_of_preset(args: argparse.Namespace, preset: Preset) -> None:
    if args.local_processes < 1:
        raise OptionError(f"--local_processes={args.local_processes}: must be at least 1.")
    if args.local_processes > 1 and not preset.processes:
        raise OptionError(
            f"--local_processes={args.local_processes}: --runner={args.runner} starts no processes here. Leave it out; "
            "the runner has its own options for the number of workers."
        )
    for flag in ("detach", "cancel_on_interrupt"):
        if vars(args).get(flag) and not preset.leaves:
            raise OptionError(f"--{flag}: with --runner={args.runner}, a job ends with this command. Leave it out.")


def _check_known(PipelineOptions: Any, args: argparse.Namespace, rest: Sequence[str]) -> None:
    known = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(known)
    for unknown in known.parse_known_args(list(rest))[1]:
        if unknown.startswith("-"):
            name = unknown.lstrip("-").split("=")[0]
            hint = did_you_mean(name, {"output", *vars(args)})
            raise OptionError(f"--{name} is neither an option of this converter nor of Apache Beam.{hint}")
