"""The number of processes that a conversion starts on this machine: --local-processes.

Beam is imported only inside functions."""

import itertools
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from beam_jobs.converter import ConversionJob, Packer
from pipeline.console.console import Console, say
from pipeline.machine import free_memory_bytes, num_cores
from pipeline.sizes import GB
from pipeline.storage.schemes import open_storage

_SECONDS_PER_PROCESS = 15  # of work, because processes start 3 s later
_BYTES_PER_PROCESS = 2**30  # packing takes most: 550 MB of text, 300 MB of tables
_PROCESSES = "multi_processing"  # Beam's name


def process_flags(args: Namespace) -> Sequence[str]:
    """Beam's flags for --local-processes, which the user's own flags override."""
    if args.local_processes == 1:
        return ()
    return (
        f"--direct_running_mode={_PROCESSES}",
        f"--direct_num_workers={args.local_processes}",
    )


def with_processes(job: ConversionJob, options: Any, console: Console) -> ConversionJob:
    """The job with its number of processes, which Beam's options get, too. Decides it unless a flag
    has."""
    from apache_beam.options.pipeline_options import DirectOptions

    direct = options.view_as(DirectOptions)
    if not direct.direct_num_workers:
        number = auto_processes(_core_seconds(job), num_cores(), free_memory_bytes())
        direct.direct_num_workers = number
        if number == 1:
            direct.direct_running_mode = "in_memory"
        else:
            say(
                console,
                f"note: {number} processes, because the CPU limits this conversion "
                "(--local-processes)",
            )
    several = direct.direct_running_mode == _PROCESSES
    return replace(job, local_processes=direct.direct_num_workers if several else 1)


def auto_processes(seconds: float, cores: int, free_bytes: int) -> int:
    """The number of processes for work that takes one core this long: one for less than 30 s, and
    no more than there are cores and memory for."""
    return max(1, min(cores, free_bytes // _BYTES_PER_PROCESS, int(seconds / _SECONDS_PER_PROCESS)))


def _core_seconds(job: ConversionJob) -> float:
    """An estimate of the work. Of folders only the last is scanned, because listing all may take
    minutes."""
    rate = job.converter.core_seconds_per_gb
    last = job.sources[-1]
    if last.kind != "folder" or isinstance(job.converter, Packer):
        return sum(rate(source.uri) * source.bytes for source in job.sources) / GB
    rows = itertools.chain.from_iterable(job.converter.scan(open_storage(last.uri), last))
    return len(job.sources) * sum(rate(row.key) * row.size for row in rows) / GB
