"""The runners that a conversion knows by short names: one table, with what each of them is in Beam, asks and adds.

A member is a row here, and a module of its own where it does more than name a class. Imports Beam only inside
functions: --help and --dry_run work without it."""

import contextlib
import importlib
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs import dask_cluster, dataflow, dataflow_job, portable
from beam_jobs.job import Job, Waiting
from beam_jobs.loopback import on_loopback
from pipeline.command import Console
from pipeline.shards.errors import InfeedError, OptionError, did_you_mean
from pipeline.shards.installing import how_to_install

__all__ = ["RUNNERS", "Preset", "find_runner"]

_REASON_LENGTH = 300
_OF_A_JOB = ("[while running ", f"{InfeedError.__module__}.")  # in the text of an error from a job that started


def _run_to_its_end(job: Job, options: Any, _console: Console, _waiting: Waiting) -> bool:
    from beam_jobs.graph import pipeline_of

    pipeline_of(job, options).run().wait_until_finish()
    return True


def _start_and_wait(job: Job, options: Any, _console: Console, _waiting: Waiting) -> bool:
    """As _run_to_its_end. Raises OptionError where a runner that we do not know cannot start."""
    from beam_jobs.graph import pipeline_of

    pipeline = pipeline_of(job, options)
    try:
        result = pipeline.run()
    except Exception as e:  # of any class: it finds no Java, no job server, no package of its own
        if isinstance(e, InfeedError) or any(mark in str(e) for mark in _OF_A_JOB):
            raise
        reason = textwrap.shorten(str(e).partition("\n")[0] or type(e).__name__, _REASON_LENGTH, placeholder=" ...")
        raise OptionError(
            f"--runner={options.get_all_options()['runner']} cannot start here: {reason.rstrip('.')}. Start its job "
            "service and give its address (--runner=portable --job_endpoint=host:port), or choose another runner: "
            f"{', '.join(RUNNERS)}."
        ) from e
    result.wait_until_finish()
    return True


@dataclass(frozen=True)
class Preset:
    """One runner: Beam's class by its full path, a line of help, and what a conversion does for it.

    flags: what it adds for Beam; the user's own flags come after it and win.
    check: raises OptionError for what cannot run, before anything is read; it sees Beam's PipelineOptions.
    check_job: raises OptionError for a job that it cannot run, before anything is asked of the output.
    around: what has to be there while a job runs. It may change Beam's options, and say better why the job failed.
    run: runs a job and waits for its end. False: nobody waits."""

    runner: str
    help: str = ""
    flags: Callable[[Namespace], Sequence[str]] = lambda _args: ()
    check: Callable[[Namespace, Any], None] = lambda _args, _options: None
    check_job: Callable[[Job], None] = lambda _job: None
    around: Callable[[Any], contextlib.AbstractContextManager[None]] = lambda _options: contextlib.nullcontext()
    run: Callable[[Job, Any, Console, Waiting], bool] = _run_to_its_end
    aliases: tuple[str, ...] = ()  # names of Beam's that mean it, in lower case and without "runner"
    extra: str = "convert"  # of ours, which installs it
    processes: bool = False  # takes --local_processes
    leaves: bool = False  # takes --detach and --cancel_on_interrupt: its job needs no launcher
    quiet: bool = False  # its workers write to our stderr, and nothing that the verdict does not say


def _local_flags(args: Namespace) -> Sequence[str]:
    if args.local_processes == 1:
        return ()
    return ("--direct_running_mode=multi_processing", f"--direct_num_workers={args.local_processes}")


@contextlib.contextmanager
def _local_around(_options: Any) -> Iterator[None]:
    from beam_jobs.local_workers import watched_workers

    with on_loopback(), watched_workers():
        yield


RUNNERS: Mapping[str, Preset] = {
    "local": Preset(
        "apache_beam.runners.portability.fn_api_runner.FnApiRunner",
        "this machine, in one process or in --local_processes",
        flags=_local_flags,
        around=_local_around,
        # Beam's DirectRunner runs our graph in this class, after it has tried to download another runner's binary.
        aliases=("direct", "switchingdirect", "fnapi"),
        processes=True,
        quiet=True,
    ),
    "dask": Preset(
        "beam_jobs.dask_runner.ChainRunner",
        "the Dask cluster of --dask_client_address, or one of --local_processes workers that ends with the command",
        flags=dask_cluster.dask_flags,
        check=dask_cluster.check_options,
        around=dask_cluster.running_cluster,
        extra="dask",
        processes=True,
        quiet=True,
    ),
    "dataflow": Preset(
        "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner",
        "Google Cloud, with --project and --region (beam_jobs/DATAFLOW.md)",
        check=dataflow.check,
        check_job=dataflow.check_job,
        run=dataflow_job.run,
        extra="gcp",
        leaves=True,
    ),
    "portable": Preset(
        "apache_beam.runners.portability.portable_runner.PortableRunner",
        "the job service of --job_endpoint, with --environment_type for its workers",
        check=portable.check_options,
        around=lambda _options: on_loopback(),  # --environment_type=LOOPBACK starts workers in this process
    ),
}


def find_runner(name: str) -> Preset:
    """The preset of a --runner, by its short name, by Beam's or by its class; one that adds nothing for other classes.

    Imports the class, as its options are not known before. Raises OptionError."""
    short = _short(name.rpartition(".")[2] if name.startswith("apache_beam.") else name)
    for key, preset in RUNNERS.items():
        if short in (key, *preset.aliases) or name == preset.runner:
            _load(preset.runner, f"needs more than is installed. Install it: {how_to_install(preset.extra)}", key)
            return preset
    if "." in name:
        _load(name, "cannot be imported. Allowed are short names and package.module.Class", name)
    else:
        _check_known_to_beam(name)
    return Preset(name, run=_start_and_wait)


def _load(path: str, problem: str, name: str) -> None:
    module, _, attribute = path.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise OptionError(f"--runner={name} {problem}. ({e})") from e


def _short(name: str) -> str:
    return name.lower().removesuffix("runner")


def _check_known_to_beam(name: str) -> None:
    from apache_beam.options.pipeline_options import StandardOptions

    known = StandardOptions.KNOWN_RUNNER_NAMES
    if _short(name) not in map(_short, known):
        hint = did_you_mean(name, {*RUNNERS, *known})
        raise OptionError(f"--runner={name}: no such runner.{hint} A class of your own: package.module.Class.")
