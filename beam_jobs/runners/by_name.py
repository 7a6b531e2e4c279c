"""Runners by name: those with a short name, and any other of Beam's or a user's.

To add a runner, write its class in a module of its own and list it in RUNNERS."""

import importlib
import socket
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from beam_jobs.loopback import on_loopback
from beam_jobs.runners.dask_cluster import DaskCluster
from beam_jobs.runners.dataflow import Dataflow
from beam_jobs.runners.local import Local
from beam_jobs.runners.runner import Runner
from pipeline.checks import did_you_mean
from pipeline.console.console import Console
from pipeline.errors import ConversionError, InfeedError, OptionError
from pipeline.packages import how_to_install

_CONNECT_SECONDS = 10
_PAGE = "docs/runners.md has both commands."
_REASON_LENGTH = 160  # of each end
# in the text of errors from jobs that have started
_OF_A_JOB = ("[while running ", f"{InfeedError.__module__}.")


class Other(Runner):
    """A runner that only Beam or a user knows. It may fail with an exception of any class: there is
    no Java or no job server, a package is missing, or workers were lost."""

    def __init__(self, beam_class: str) -> None:
        self.beam_class = beam_class

    def run(self, job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
        """See Runner. Raises ConversionError with the runner's reason if it fails."""
        from beam_jobs.graph import pipeline_of

        pipeline = pipeline_of(job, options)
        how = "failed"
        remedy = (
            "If it did not start, start its job service and give its address (--runner=portable "
            f"--job_endpoint=host:port), or choose another runner: {', '.join(RUNNERS)}. If it "
            "did, look at the log of its workers."
        )
        try:
            result = pipeline.run()
            how = "failed while the job ran"
            remedy = "Look at the log of its workers. The same command resumes."
            result.wait_until_finish()
        except Exception as e:
            if isinstance(e, InfeedError) or any(mark in str(e) for mark in _OF_A_JOB):
                raise
            reason = " ".join(f"{type(e).__name__}: {e}".split()).rstrip(".: >")
            if len(reason) > 2 * _REASON_LENGTH:  # it quotes a traceback, whose end is the cause
                reason = f"{reason[:_REASON_LENGTH]} ... {reason[-_REASON_LENGTH:]}"
            raise ConversionError(f"--runner={self.beam_class} {how}: {reason}. {remedy}") from e
        return True


class Portable(Other):
    """A job service, with workers of --environment_type."""

    name = "portable"
    help = "the job service of --job_endpoint, with --environment_type for its workers"

    def __init__(self) -> None:
        super().__init__("apache_beam.runners.portability.portable_runner.PortableRunner")

    def check(self, args: Namespace, options: Any) -> None:
        """See Runner. Raises OptionError if the job service or its workers are not given,
        ConversionError if the service is down."""
        from apache_beam.options.pipeline_options import PortableOptions

        portable = options.view_as(PortableOptions)
        endpoint = portable.job_endpoint
        if not endpoint:
            raise OptionError(
                f"--runner={args.runner} needs --job_endpoint=host:port, the address of a job "
                "service. To start one here: python -m beam_jobs.loopback job_service "
                f"--port=8099. {_PAGE}"
            )
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal():
            raise OptionError(
                f"--job_endpoint={endpoint}: must be host:port, such as localhost:8099."
            )
        # Beam's default is its own image, which has none of our packages
        if not portable.environment_type:
            raise OptionError(
                f"--runner={args.runner} needs --environment_type: EXTERNAL with "
                "--environment_config=host:port, a worker pool in an environment that has infeed; "
                f"or DOCKER with --environment_config=IMAGE that has it. {_PAGE}"
            )
        if portable.environment_type == "EXTERNAL" and not (
            portable.environment_config or portable.environment_options
        ):
            raise OptionError(
                "--environment_type=EXTERNAL needs --environment_config=host:port, a worker pool. "
                f"{_PAGE}"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as e:
            raise ConversionError(
                f"no job service answers at --job_endpoint={endpoint}: {e}. Start it, or correct "
                "it."
            ) from e

    def run(self, job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
        """See Runner."""
        with on_loopback():  # --environment_type=LOOPBACK starts workers here
            return super().run(job, options, console, waiting)


RUNNERS: Mapping[str, Runner] = {
    runner.name: runner for runner in (Local(), DaskCluster(), Dataflow(), Portable())
}


def find_runner(name: str) -> Runner:
    """The runner with this short name, Beam's name or class.

    Imports the class, because that defines its options. Raises OptionError."""
    short = _short(name.rpartition(".")[2] if name.startswith("apache_beam.") else name)
    for runner in RUNNERS.values():
        if short in (runner.name, *runner.aliases) or name == runner.beam_class:
            _load(runner.beam_class, runner.name, runner.extra)
            return runner
    if "." in name:
        _load(name, name)
    else:
        from apache_beam.options.pipeline_options import StandardOptions

        known = StandardOptions.KNOWN_RUNNER_NAMES
        if short not in map(_short, known):
            hint = did_you_mean(name, {*RUNNERS, *known})
            raise OptionError(
                f"--runner={name}: no such runner.{hint} A class of your own: package.module.Class."
            )
    return Other(name)


def _load(path: str, name: str, extra: str | None = None) -> None:
    module, _, attribute = path.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        problem = "cannot be imported. It must be a short name or package.module.Class"
        if extra:
            problem = f"needs more than is installed. Install it: {how_to_install(extra)}"
        raise OptionError(f"--runner={name} {problem}. ({e})") from e


def _short(name: str) -> str:
    return name.lower().removesuffix("runner")
