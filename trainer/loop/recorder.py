"""The history of a training run: its start, the bad records that it met, and its end, in
segments.jsonl."""

import contextlib
import secrets
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jax

from pipeline.console.commands import program
from pipeline.errors import InfeedError
from pipeline.storage.storage import join
from trainer.checkpointing.contents import versions
from trainer.hosts.exchange import Decision
from trainer.hosts.exits import Interrupted, Preempted
from trainer.inputs import Input
from trainer.loop.job import Job
from trainer.mesh.batch_spec import batch_struct
from trainer.reports.metrics_lines import last_step
from trainer.reports.segments import BadRecords, End, HistoryLine, Start, append
from trainer.reports.workdir import TRAIN

Hint = Callable[[int], str]
"""A step -> the end of a sentence, and one that names a command; "" if no command can help."""
MOST_REASON = 300  # characters


@dataclass
class Recorder(AbstractContextManager):
    """Records one run. As a context manager, it also writes an end for an error that ends the run.
    run: its identity.

    Host 0 writes start and end; every host writes the bad records that it met. A fast_dev_run
    writes nothing. fence: raises if another run owns the work directory by now; then nothing is
    written."""

    job: Job
    source: Input
    fence: Callable[[], None]

    def __post_init__(self) -> None:
        self._workdir = self.job.config.workdir
        self._provenance = None  # a fast_dev_run leaves no history
        if not self.job.config.fast_dev_run:
            self._provenance = self.source.info.provenance
        self._known = set[int]()
        self.run = secrets.token_hex(8)
        self._step = 0

    def hint(self, step: int) -> str:
        """Names the command that shows the records of a step of this run; see Hint."""
        if self._provenance is None:
            return ""
        command = f"{program('trainer.commands.seen')} {shlex.quote(self._workdir)}"
        return f". To list its records, run: {command} --step {step}"

    def start(self, step: int, position: Any, parent: str | None, end: int | None) -> None:
        """Writes the start of the run after this step, from this position of its input. parent: see
        Start. end: the last step."""
        self._step = step
        job = self.job
        mesh = job.placement.mesh
        count = jax.process_count()
        self._write(
            Start(
                step,
                _now(),
                self.source.state(position),
                self._provenance,
                job.config.to_json() | {"max_steps": end},
                command=job.command,
                versions=versions(),
                devices=(
                    f"{mesh.size} x {mesh.devices.flat[0].device_kind}, {count} "
                    f"process{'es' * (count > 1)}"
                ),
                run=self.run,
                parent=parent,
                reported=last_step(join(self._workdir, TRAIN)) if self.job.writes else None,
                batch=job.placement.axes.map(
                    lambda x, axis: [str(x.dtype), *x.shape[:axis], 1, *x.shape[axis + 1 :]],
                    batch_struct(self.source.info.spec),
                ),
            )
        )

    def reached(self, step: int) -> None:
        """Notes the last step, and writes the bad records that the input has met since the last
        call."""
        self._step = step
        quarantine = self.source.info.quarantine
        if self._provenance is None or len(quarantine) == len(self._known):
            return
        new = [bad for bad in quarantine if bad.record_id not in self._known]
        self._known.update(bad.record_id for bad in new)
        self.fence()
        reasons = {str(bad.record_id): bad.reason for bad in new}
        append(self._workdir, BadRecords(self._provenance["fingerprint"], reasons))

    def end(self, stopped: Decision) -> None:
        """Writes the end of the run. stopped: what ended it early, if anything."""
        how = "interrupted: " if stopped.interrupted else "preempted: " if stopped.preempted else ""
        self._end(f"{how}{stopped.stop}" or "finished")

    def _end(self, reason: str) -> None:
        self._write(End(self._step, _now(), reason[:MOST_REASON]))

    def _write(self, line: HistoryLine) -> None:
        if self.job.writes:
            self.fence()
            append(self._workdir, line)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        with contextlib.suppress(InfeedError):  # of the disk, or of a new owner: `error` says more
            how = {Interrupted: "interrupted: ", Preempted: "preempted: "}.get(type(error), "")
            self._end(f"{how}{error}" or type(error).__name__)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
