"""--runner=local: this machine, in one process or several."""

from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from beam_jobs.loopback import on_loopback
from beam_jobs.runners.processes import with_processes
from beam_jobs.runners.runner import Runner
from pipeline.console.console import Console


class Local(Runner):
    """Beam's runner in this process. Beam's DirectRunner also uses it for our graph, but first
    tries to download another runner."""

    name = "local"
    beam_class = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    help = "this machine, in one process or in --local-processes"
    aliases = ("direct", "switchingdirect", "fnapi")
    has_processes = True
    quiet = True

    def run(self, job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
        """See Runner. Raises ConversionError if a worker process died."""
        from beam_jobs.runners.local_workers import watched_workers

        job = with_processes(job, options, console)
        with on_loopback(), watched_workers():
            return super().run(job, options, console, waiting)
