"""A live bar for a running conversion: it reads receipts, so it works with any runner and any number of processes."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from beam_jobs.job import Job
from pipeline.shards.errors import InfeedError
from pipeline.shards.naming import plan_file, receipt_file
from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import Storage, join

__all__ = ["watching"]

_POLL_SECONDS = 0.5
_POLL_SECONDS_REMOTE = 5.0  # each time the directory is listed


@contextlib.contextmanager
def watching(job: Job, console: Console) -> Iterator[None]:
    """Shows one bar a split while the block runs: shards, records/s, MB/s, time left. Silent when not on a terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bars = [_Bar(job, split, progress) for split in job.splits]
        stop = threading.Event()
        thread = threading.Thread(target=_poll, args=(job, bars, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            _update(job, bars)


def _poll(job: Job, bars: "list[_Bar]", stop: threading.Event) -> None:
    while not stop.wait(_POLL_SECONDS_REMOTE if is_remote(job.output_dir) else _POLL_SECONDS):
        _update(job, bars)


def _update(job: Job, bars: "list[_Bar]") -> None:
    storage = open_storage(job.output_dir)
    with contextlib.suppress(InfeedError, ValueError, KeyError, TypeError):  # a bar never breaks a conversion
        names = {f"_shards/{name}" for name in storage.list(join(job.output_dir, "_shards"))}
        for bar in bars:
            bar.update(storage, names)


class _Bar:
    """The bar of one split. Speed is that of this run: what was finished before it counts as done, not as fast."""

    def __init__(self, job: Job, split: str, progress: Progress) -> None:
        self._directory, self._split, self._progress = job.output_dir, split, progress
        self._task = progress.add_task(f"{split}: scanning", total=None, rate="")
        self._plan = ""  # an overwrite replaces the claim under way
        self._missing: set[str] = set()  # receipts that were not there yet
        self._began = self._records = self._bytes = 0.0

    def update(self, storage: Storage, names: set[str]) -> None:
        """names: what is there beside the shards."""
        if plan_file(self._split) not in names:
            return
        claim = json.loads(storage.read(join(self._directory, plan_file(self._split))))
        if claim["plan"] != self._plan:
            self._plan = claim["plan"]
            self._begin(claim["num_shards"], names)
            return
        found = sorted(self._missing & names)
        for name in found:
            receipt = json.loads(storage.read(join(self._directory, name)))
            self._records += receipt["records"]
            self._bytes += receipt["bytes"]
        self._missing -= set(found)
        seconds = time.monotonic() - self._began
        rate = f"{self._records / seconds:,.0f} records/s, {self._bytes / seconds / 1e6:,.0f} MB/s"
        self._progress.update(self._task, advance=len(found), rate=rate)

    def _begin(self, num_shards: int, names: set[str]) -> None:
        receipts = {receipt_file(self._split, shard, num_shards) for shard in range(num_shards)}
        self._missing, self._began = receipts - names, time.monotonic()
        self._records = self._bytes = 0.0
        done = len(receipts & names)
        self._progress.reset(self._task, description=f"{self._split}: shards", total=num_shards, completed=done)
