"""Progress of a job: bars, or without a terminal a line per minute. They read receipts, so they
work with any runner and any number of processes."""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from beam_jobs.converter import ConversionJob
from beam_jobs.split.claims import Claim, read_claim
from beam_jobs.split.ledger import parse_receipt
from beam_jobs.survey import Survey
from pipeline.console.console import Console, say
from pipeline.errors import InfeedError
from pipeline.shards.naming import plan_file, receipt_file
from pipeline.sizes import counted

_POLL_SECONDS = 0.5
_POLL_SECONDS_REMOTE = 5.0  # each poll lists the directory
_LINE_SECONDS = 60.0


@contextlib.contextmanager
def progress_bars(job: ConversionJob, console: Console) -> Iterator[None]:
    """Shows one bar or line per split while the block runs the job: shards, records/s, MB/s and
    time left."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bars = [_Bar(job, split, progress) for split in job.splits]

        def show() -> None:
            _update(job, bars)
            for task in () if console.is_terminal else progress.tasks:
                done = f" {task.completed:,.0f} of {task.total:,.0f}, " if task.total else ""
                say(console, f"{task.description}{done}{task.fields['rate']}")

        with _repeated(show, job, console):
            yield


@contextlib.contextmanager
def survey_status(job: Survey, console: Console) -> Iterator[None]:
    """Shows how much has been seen while the block runs a survey."""
    total = counted(len(job.groups), "part")
    with console.status("looking at the raw data") as status:

        def show() -> None:
            line = f"looking at the raw data: {job.num_seen():,} of {total}"
            status.update(line) if console.is_terminal else say(console, line)

        with _repeated(show, job, console):
            yield


@contextlib.contextmanager
def _repeated(show: Callable[[], None], job: ConversionJob, console: Console) -> Iterator[None]:
    """Calls a function periodically while the block runs the job, and on a terminal also at its
    end."""
    stop = threading.Event()
    seconds = _POLL_SECONDS_REMOTE if job.output.remote else _POLL_SECONDS
    if not console.is_terminal:
        seconds = _LINE_SECONDS

    def poll() -> None:
        while not stop.wait(seconds):
            with contextlib.suppress(InfeedError):  # a bar must never fail a conversion
                show()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # the thread may be waiting for a bucket
        if not isinstance(sys.exception(), KeyboardInterrupt):
            thread.join()
            if console.is_terminal:
                with contextlib.suppress(InfeedError):
                    show()


def _update(job: ConversionJob, bars: "list[_Bar]") -> None:
    names = {f"_shards/{name}" for name in job.output.list(job.path("_shards"))}
    for bar in bars:
        with contextlib.suppress(InfeedError):  # a damaged claim stops only its own bar
            bar.refresh(names)


class _Bar:
    """The bar of one split. Shards from earlier runs count as completed, but not towards the
    speed."""

    def __init__(self, job: ConversionJob, split: str, progress: Progress) -> None:
        self._job = job
        self._split = split
        self._progress = progress
        self._task = progress.add_task(f"{split}: scanning", total=None, rate="")
        self._plan = ""  # --overwrite may replace the claim during the run

    def refresh(self, names: set[str]) -> None:
        """Shows the current state. names: files in _shards."""
        if plan_file(self._split) not in names:
            return
        claim = read_claim(self._job, self._split)
        if claim.plan != self._plan:
            self._begin(claim, names)
        for name in sorted(self._missing & names):
            receipt = parse_receipt(self._job.output.read(self._job.path(name)))
            if receipt:  # a damaged one will be replaced
                self._missing.remove(name)
                self._written.update(records=receipt.records, bytes=receipt.bytes)
        seconds = max(time.monotonic() - self._began, _POLL_SECONDS)
        records, size = (self._written[name] / seconds for name in ("records", "bytes"))
        rate = f"{records:,.0f} records/s, {size / 1e6:,.0f} MB/s"
        completed = claim.num_shards - len(self._missing)
        self._progress.update(self._task, completed=completed, rate=rate)

    def _begin(self, claim: Claim, names: set[str]) -> None:
        self._plan = claim.plan
        shards = range(claim.num_shards)
        receipts = {receipt_file(self._split, shard, claim.num_shards) for shard in shards}
        self._missing = receipts - names  # those that do not exist yet
        self._began = time.monotonic()
        self._written = Counter[str]()  # of this run
        self._progress.reset(
            self._task, description=f"{self._split}: shards", total=claim.num_shards, rate=""
        )
