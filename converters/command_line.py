"""What the commands *_to_gcs share: the common options, and running the job or its --dry-run.

Commands call `exit_with(main)` only if run as __main__, and define nothing that travels to workers:
these could not import a class of __main__. Knows no converter.

Options that are not ours go to Beam, which is imported only for them and to run a job."""

import argparse
import contextlib
import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.converter import ConversionJob, Converter, Packer, Source, Waiting
from beam_jobs.launch import dry_run, launch, run_survey
from beam_jobs.runners.by_name import RUNNERS, find_runner
from beam_jobs.runners.processes import process_flags
from beam_jobs.scratch import Scratch
from beam_jobs.split.summary import check_places
from beam_jobs.survey import Survey
from converters.raw.files import unread
from pipeline.checks import check_number, did_you_mean
from pipeline.console.console import Console, say
from pipeline.console.interrupts import Exit
from pipeline.console.parser import Parser, spelled
from pipeline.errors import InfeedError, OptionError
from pipeline.packages import how_to_install
from pipeline.shards.typed_json import Json
from pipeline.sizes import parse_bytes


def conversion_parser(
    command: str,
    doc: str | None,
    examples: Sequence[str],
    splits: Sequence[str],
    raw_data: str,
    *,
    raw_option: str = "--raw-data-dir DIR",
    fraction: str = "",
    split_by: str = "",
) -> argparse.ArgumentParser:
    """The parser of a command, with the options that all commands share. doc and examples: as for
    Parser.

    raw_data: help for the raw_option. fraction: what --validation-fraction and --test-fraction
    take, if at all. split_by: help for --split-by."""
    parser = Parser(
        f"converters.{command}",
        doc,
        examples,
        usage=f"%(prog)s {raw_option} --output DIR [options]",
    )
    option, metavar = raw_option.split()
    parser.add_argument(option, required=True, metavar=metavar, help=raw_data)
    parser.add_argument(
        "--output",
        "--gcs-output-path",  # as in tensorflow/tpu
        dest="output",
        required=True,
        metavar="DIR",
        help="directory for the shards: local or in a bucket (gs:// or s3://)",
    )
    known = f" subset of {', '.join(splits)}" if splits else ""
    parser.add_argument("--splits", help=f"comma-separated{known} (default: all that are found)")
    for split in splits:
        parser.add_argument(
            f"--num-{split}-shards", type=int, help="overrides --target-shard-bytes"
        )
    if fraction:
        for split in ("validation", "test"):
            parser.add_argument(
                f"--{split}-fraction",
                type=float,
                help=f"{fraction}, becomes the {split} split, the rest train (0: none)",
            )
    if split_by:
        parser.add_argument("--split-by", metavar="WHAT", default="", help=split_by)
        parser.add_argument(
            "--stratify",
            action="store_true",
            help=(
                "the same fraction of each class. Looks at the raw data once more beforehand, and "
                "data added later may move records between splits"
            ),
        )
    add_options(parser)
    parser.add_json()
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command, with those for Beam as `of_beam`. Raises OptionError for an option
    that neither has, also in a dry run, and before it looks at the raw data."""
    args, rest = parser.parse_known_args(argv)
    for name in _names(rest):
        for nearest in difflib.get_close_matches(name, _ours(args), n=1, cutoff=0.85):
            raise OptionError(
                f"--{name} is not an option of this command. Did you mean --{nearest}?"
            )
    rest = [spelled(each, "-", "_") for each in rest]  # as all of Beam's are
    if args.runner != parser.get_default("runner"):
        find_runner(args.runner)  # which imports it
    if rest:
        _beam(args, rest)
    args.of_beam = rest
    for name, number in vars(args).items():
        if re.fullmatch("num_.+_shards", name):
            check_number(f"--{name.replace('_', '-')}", number, at_least=1)
    check_number("--seed", args.seed, at_least=0)
    check_number("--max-bad-records", args.max_bad_records, at_least=0)
    return args


def _ours(args: argparse.Namespace) -> list[str]:
    return ["output", *(name.replace("_", "-") for name in vars(args))]


def _names(options: Iterable[str]) -> Iterator[str]:
    return (option.lstrip("-").split("=")[0] for option in options if option.startswith("-"))


def chosen_splits(args: argparse.Namespace, known: Sequence[str] = ()) -> list[str]:
    """The splits in --splits; [] without the option. known: () if splits may have any name.

    Raises OptionError for an unknown split, and for an option that lists none."""
    if args.splits is None:
        return []
    splits = [split.strip() for split in args.splits.split(",") if split.strip()]
    for split in splits:
        if known and split not in known:
            raise OptionError(
                f"--splits={args.splits}: unknown split {split!r}.{did_you_mean(split, known)}"
            )
    if not splits:
        allowed = f" Known: {', '.join(known)}." if known else ""
        raise OptionError(f"--splits={args.splits}: no split was chosen.{allowed}")
    return splits


@contextlib.contextmanager
def scratch_of(args: argparse.Namespace, raw_data: str) -> Iterator[Scratch | None]:
    """The scratch directory for uncompressed raw data, as a context; None in a dry run.

    Raises OptionError, before anything is written, if raw data and output contain each other."""
    check_places(raw_data, args.output)
    if args.dry_run:
        yield None
        return
    most = args.max_uncompressed_bytes
    with Scratch(args.output, parse_bytes(most) if most else None) as scratch:
        yield scratch


def run(
    args: argparse.Namespace,
    converter: Converter | Packer,
    sources: Sequence[Source],
    scratch: Scratch | None = None,
    expected: Mapping[str, int] | None = None,
    notices: Sequence[str] = (),
    used: str | None = None,
    pieces: Mapping[str, Sequence[Any]] | None = None,
) -> int:
    """Converts the sources, or reports a --dry-run. Returns the exit status: 1 if a dry run
    predicts a failure.

    scratch: has the temporary files among the sources. expected: required number of records per
    split. notices: printed first, with one about raw data that is not read. used: see unread, for
    that notice; None for none. pieces: see ConversionJob. Raises OptionError."""
    num_shards = {
        source.split: getattr(args, f"num_{source.split}_shards", None) for source in sources
    }
    if not sources:
        raise OptionError("nothing to convert: the raw data has none of the chosen splits.")
    job = ConversionJob(
        converter,
        tuple(sources),
        args.output,
        target_shard_bytes=parse_bytes(args.target_shard_bytes),
        num_shards=num_shards,
        seed=args.seed,
        max_bad_records=args.max_bad_records,
        overwrite=args.overwrite,
        verify_existing=args.verify_existing,
        scratch=scratch.paths if scratch else (),
        expected=expected or {},
        pieces=pieces or {},
    )
    console = Console()
    rest = [] if used is None else unread(args.raw_data_dir, sources, args.splits, used)
    for notice in (*notices, *rest):
        say(console, f"note: {notice}")
    if args.dry_run:
        return Exit.DONE if dry_run(job, console) else Exit.BAD_DATA
    options = beam_options(args, args.of_beam)
    if scratch and find_runner(args.runner).leaves:
        scratch.keep()
    launch(job, options, console, Waiting(args.detach, args.cancel_on_interrupt))
    return 0


def survey(args: argparse.Namespace, job: Survey) -> Iterator[Json]:
    """Runs a survey on the command's runner. Returns what each source shows, see Survey.results.
    Raises OptionError, ConversionError."""
    options = beam_options(args, args.of_beam)
    run_survey(job, options, Console())
    if find_runner(args.runner).has_processes:  # decided once
        args.local_processes = options.get_all_options()["direct_num_workers"]
    return job.results()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the common options."""
    shards = parser.add_argument_group("shards")
    shards.add_argument(
        "--target-shard-bytes", default="100MB", help="size of a shard (default: %(default)s)"
    )
    shards.add_argument(
        "--seed", type=int, default=0, help="determines the order of records (default: 0)"
    )
    again = parser.add_argument_group("an output directory that already contains shards")
    again.add_argument(
        "--overwrite",
        action="store_true",
        help=(
            "replace splits written with other options or from other raw data; removes exactly "
            "their files"
        ),
    )
    again.add_argument(
        "--verify-existing",
        action="store_true",
        help=(
            "read finished shards and their raw data instead of comparing sizes and times; rewrite "
            "damaged shards. Needed after copying the raw data, which changes its times"
        ),
    )
    compressed = parser.add_argument_group("compressed raw data")
    compressed.add_argument(
        "--max-uncompressed-bytes",
        metavar="SIZE",
        help=(
            "limit for each uncompressed .gz file in <output>/_scratch (default: 100 times its "
            "size, at least 1GiB)"
        ),
    )
    bad = parser.add_argument_group("bad records")
    bad.add_argument(
        "--max-bad-records",
        type=int,
        default=0,
        help="allowed per split; all are listed (default: 0)",
    )
    run = parser.add_argument_group("running", "All other --options go to Apache Beam unchanged.")
    run.add_argument(
        "--dry-run", action="store_true", help="print records, bytes and shards; write nothing"
    )
    runners = "; ".join(f"{name}: {runner.help}" for name, runner in RUNNERS.items())
    run.add_argument(
        "--runner", default="local", help=f"{runners}; or any Beam runner (default: local)"
    )
    processes = ", ".join(
        f"--runner={name}" for name, runner in RUNNERS.items() if runner.has_processes
    )
    run.add_argument(
        "--local-processes",
        type=_processes,
        default="auto",
        help=(
            f"worker processes for {processes}; auto: by the cores, the memory and the work "
            "(default: auto)"
        ),
    )
    leaving = ", ".join(f"--runner={name}" for name, runner in RUNNERS.items() if runner.leaves)
    run.add_argument("--detach", action="store_true", help=f"{leaving}: submit the job and exit")
    run.add_argument(
        "--cancel-on-interrupt", action="store_true", help=f"{leaving}: Ctrl-C cancels the job"
    )


def _processes(text: str) -> int:
    """The number of processes; 0 is auto, as in Beam's options."""
    if text == "auto":
        return 0
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor an int of at least 1")
    return int(text)


def beam_options(args: argparse.Namespace, rest: Sequence[str]):
    """Beam's PipelineOptions for the chosen runner. Raises OptionError for options that do not suit
    it."""
    PipelineOptions = _beam(args, rest)
    runner = find_runner(args.runner)
    if args.local_processes > 1 and not runner.has_processes:
        raise OptionError(
            f"--local-processes={args.local_processes}: --runner={args.runner} starts no processes "
            "here. Leave it out; the runner has its own options for the number of workers."
        )
    for flag in ("detach", "cancel_on_interrupt"):
        if vars(args).get(flag) and not runner.leaves:
            raise OptionError(
                f"--{flag.replace('_', '-')}: with --runner={args.runner}, a job ends with this "
                "command. Leave it out."
            )
    flags = process_flags(args) if runner.has_processes else ()
    options = PipelineOptions([f"--runner={runner.beam_class}", *flags, *rest])
    runner.check(args, options)
    return options


def _beam(args: argparse.Namespace, rest: Sequence[str]) -> Any:
    """Beam's PipelineOptions. Raises OptionError for an option that Beam does not have either."""
    # without its [gcp] extra, Beam warns about clients that we do not use
    logging.disable(logging.WARNING)
    try:
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as e:
        raise InfeedError(
            f"conversion needs Apache Beam ({e}). Install it: {how_to_install('convert')}."
        ) from e
    finally:
        logging.disable(logging.NOTSET)
    find_runner(args.runner)  # its class defines options
    known: Any = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(known)
    for name in _names(spelled(each, "_", "-") for each in known.parse_known_args(list(rest))[1]):
        raise OptionError(
            f"--{name} is neither an option of this converter nor of Apache "
            f"Beam.{did_you_mean(name, _ours(args))}"
        )
    return PipelineOptions
