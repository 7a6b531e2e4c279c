"""The base class of runners: what a conversion needs of a runner of Beam. Each subclass is in a
module of its own.

Beam is imported only inside functions, so that --help and --dry-run work without it."""

from argparse import Namespace
from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from pipeline.console.console import Console


class Runner:
    """A runner of Beam. A subclass overrides what differs from most runners.

    name: for --runner.
    beam_class: the full path of Beam's class.
    help: a line of help.
    aliases: Beam's names for it, in lower case and without "runner".
    extra: our extra that installs it.
    has_processes: supports --local-processes.
    leaves: supports --detach and --cancel-on-interrupt, because its jobs need no launcher.
    quiet: its workers write to our stderr, but only what the verdict reports as well."""

    name: str
    beam_class: str
    help: str = ""
    aliases: tuple[str, ...] = ()
    extra: str = "convert"
    has_processes: bool = False
    leaves: bool = False
    quiet: bool = False

    def check(self, args: Namespace, options: Any) -> None:
        """Raises OptionError for options that cannot work, before any access to the output.
        options: Beam's PipelineOptions."""

    def check_job(self, job: ConversionJob) -> None:
        """Raises OptionError for a job that the runner cannot run, before any access to the
        output."""

    def run(self, job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
        """Runs a job and waits for its end. Returns False if it did not wait.

        May change Beam's options, and replaces errors by clearer ones."""
        from beam_jobs.graph import pipeline_of

        pipeline_of(job, options).run().wait_until_finish()
        return True
