"""A live bar for a running conversion: it counts receipts, so it works with any runner and any number of processes."""

import contextlib
import json
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from beam_jobs.job import Job
from pipeline.shards.errors import InfeedError
from pipeline.shards.naming import plan_file, receipt_file
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join

__all__ = ["watching"]

_POLL_SECONDS = 0.5


@contextlib.contextmanager
def watching(job: Job, console: Console) -> Iterator[None]:
    """Shows one bar a split while the block runs: shards finished, time left. Silent when not on a terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bars = {split: progress.add_task(f"{split}: scanning", total=None) for split in job.splits}
        stop = threading.Event()
        thread = threading.Thread(target=_poll, args=(job, progress, bars, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            _update(job, progress, bars)


def _poll(job: Job, progress: Progress, bars: dict[str, TaskID], stop: threading.Event) -> None:
    while not stop.wait(_POLL_SECONDS):
        _update(job, progress, bars)


def _update(job: Job, progress: Progress, bars: dict[str, TaskID]) -> None:
    storage = open_storage(job.output_dir)
    with contextlib.suppress(InfeedError):  # a bar never breaks a conversion
        names = set(storage.list(join(job.output_dir, "_shards")))
        for split, bar in bars.items():
            if plan_file(split).removeprefix("_shards/") in names:
                total = json.loads(storage.read(join(job.output_dir, plan_file(split))))["num_shards"]
                receipts = (receipt_file(split, shard, total).removeprefix("_shards/") for shard in range(total))
                done = sum(name in names for name in receipts)
                progress.update(bar, description=f"{split}: shards", total=total, completed=done)
