"""A progress bar for a running conversion. It reads receipts, so it works with any runner and any number of processes.

It also reads the counts of workers on this machine, which show progress within shards and during the scan."""

import contextlib
import dataclasses
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from beam_jobs.claims import Claim, read_claim
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.counts import Counts, read_counts
from beam_jobs.receipts import parse_receipt
from pipeline.errors import InfeedError
from pipeline.shards.naming import plan_file, receipt_file
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join
from pipeline.tools.command import Console

_POLL_SECONDS = 0.5
_POLL_SECONDS_REMOTE = 5.0  # each poll lists the directory
_NEARLY = 0.99  # the most that a shard counts for until its receipt exists


@contextlib.contextmanager
def progress_bars(job: ConversionJob, console: Console) -> Iterator[ConversionJob]:
    """Shows one bar per split while the block runs the yielded job: scan, shards, records/s, MB/s and time left."""
    if not console.is_terminal:
        yield job
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    progress_bars = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    with tempfile.TemporaryDirectory(prefix="infeed-") as directory, progress_bars as progress:
        job = dataclasses.replace(job, counts_dir=directory)
        bars = [_Bar(job, split, progress) for split in job.splits]
        stop = threading.Event()
        thread = threading.Thread(target=_poll, args=(job, bars, stop), daemon=True)
        thread.start()
        try:
            yield job
        finally:
            stop.set()
            if not isinstance(sys.exception(), KeyboardInterrupt):  # the thread may be waiting for a bucket
                thread.join()
                _update(job, bars)


def _poll(job: ConversionJob, bars: "list[_Bar]", stop: threading.Event) -> None:
    while not stop.wait(_POLL_SECONDS_REMOTE if is_remote(job.output_dir) else _POLL_SECONDS):
        _update(job, bars)


def _update(job: ConversionJob, bars: "list[_Bar]") -> None:
    storage = open_storage(job.output_dir)
    with contextlib.suppress(InfeedError):  # a bar must never fail a conversion
        names = {f"_shards/{name}" for name in storage.list(join(job.output_dir, "_shards"))}
        counts = read_counts(job.counts_dir)
        for bar in bars:
            with contextlib.suppress(InfeedError):  # a damaged claim stops only its own bar
                bar.update(storage, names, counts.get(bar.split, Counts()))


class _Bar:
    """The bar of one split. Shards from earlier runs count as completed, but not towards the speed."""

    def __init__(self, job: ConversionJob, split: str, progress: Progress) -> None:
        self._directory, self.split, self._progress = job.output_dir, split, progress
        self._sources = sum(source.split == split for source in job.sources)
        self._task = progress.add_task(f"{split}: scanning", total=self._sources, rate="")
        self._plan = ""  # --overwrite may replace the claim during the run
        self._missing: set[str] = set()  # receipts that do not exist yet
        self._began = self._shard_bytes = 0.0
        self._num_shards = self._found = self._records = self._bytes = 0  # found: receipts of this run

    def update(self, storage: Storage, names: set[str], counts: Counts) -> None:
        """Shows the current state. names: files in _shards. counts: of workers on this machine."""
        scanning = counts.scanned > 0 and counts.sources < self._sources  # even if an earlier run left a claim
        if plan_file(self.split) not in names or scanning:
            completed = min(counts.sources, self._sources)
            self._progress.update(self._task, completed=completed, rate=f"{counts.scanned:,} records found")
            return
        claim = read_claim(storage, join(self._directory, plan_file(self.split)))
        if claim.plan != self._plan:
            self._begin(claim, names)
        for name in sorted(self._missing & names):
            receipt = parse_receipt(storage.read(join(self._directory, name)))
            if receipt:  # a damaged one will be replaced
                self._missing.remove(name)
                self._found += 1
                self._records += receipt.records
                self._bytes += receipt.bytes
        self._show(max(self._records, counts.records), max(self._bytes, counts.bytes))

    def _begin(self, claim: Claim, names: set[str]) -> None:
        self._plan, self._num_shards = claim.plan, claim.num_shards
        self._missing = {receipt_file(self.split, shard, self._num_shards) for shard in range(self._num_shards)} - names
        self._began, self._shard_bytes = time.monotonic(), claim.bytes / self._num_shards
        self._found = self._records = self._bytes = 0
        self._progress.reset(self._task, description=f"{self.split}: shards", total=self._num_shards, rate="")

    def _show(self, records: int, num_bytes: int) -> None:
        """Shows what this run has written. Unfinished shards count in proportion to the usual size of a shard."""
        shard_bytes = self._bytes / self._found if self._found else self._shard_bytes
        under_way = (num_bytes - self._bytes) / max(1, shard_bytes)
        completed = self._num_shards - len(self._missing) + min(under_way, _NEARLY * len(self._missing))
        seconds = max(time.monotonic() - self._began, _POLL_SECONDS)
        rate = f"{records / seconds:,.0f} records/s, {num_bytes / seconds / 1e6:,.0f} MB/s"
        self._progress.update(self._task, completed=completed, rate=rate)
