"""What the host records of training: the result of every dispatch, and in the history the run's start, bad records and
end."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from pipeline.errors import InfeedError
from pipeline.storage.storage import join
from trainer.checked import FiniteCheck, LossSpikes
from trainer.checkpointing.contents import versions
from trainer.cluster.decisions import Decision
from trainer.events.metrics_lines import last_step
from trainer.events.progress import ProgressLine, Speed, StepSize
from trainer.events.reports import Reports
from trainer.exits import Interrupted, Preempted
from trainer.history.segments import BadRecords, End, Hint, HistoryLine, Start, append, hint_of, no_hint
from trainer.inputs import Input
from trainer.job import Job
from trainer.loop.dispatching import DispatchResult
from trainer.loop.feed import Feeder
from trainer.modes.restoring import Begun
from trainer.modes.session import Session
from trainer.step_functions import BAD_LEAF
from trainer.workdir import TRAIN

MOST_REASON = 300  # characters


class TrainMonitor(AbstractContextManager):
    """Monitors training from the state `begun` to step `end`, as a context manager: leaving it closes the reports.

    last: every scalar of the last step. productive_seconds: up to the last result, see Goodput. hint: ends messages
    about a step that went wrong."""

    def __init__(
        self, session: Session, feeder: Feeder, size: StepSize, begun: Begun, end: int | None, *, hint: Hint
    ) -> None:
        config, start = session.job.config, begun.step
        self.check = FiniteCheck(config.on_nan, begun.state, session.job.placement, hint)
        self.reports = Reports(config, TRAIN, start, session.ownership.fence)
        self.last: dict[str, float] = {}
        self.productive_seconds = 0.0
        self._feeder, self._size, self._spikes = feeder, size, LossSpikes(hint)
        self._line = ProgressLine(start, end, size, config.log_every) if jax.process_index() == 0 else None
        self._began = time.perf_counter()
        self._seconds = self._away = self._saving = 0.0

    def observe(self, result: DispatchResult) -> Speed | None:
        """Handles a dispatch result; returns the speed when a new one is logged, on host 0.

        NanError for a step with non-finite values, if these end the run."""
        bad = result.scalars.pop(BAD_LEAF, np.full(result.length, -1))
        speed = self._write(result, self.check.reported(bad))
        self.check.observe(result, bad)
        if self._line is not None:  # one host is enough
            self._spikes.observe(result.start, result.scalars["loss"])
        self._seconds = time.perf_counter() - self._began - self._away
        self.productive_seconds = self._seconds - self._saving
        self.last = {name: float(values[-1]) for name, values in result.scalars.items()}
        return speed

    def _write(self, result: DispatchResult, count: int) -> Speed | None:
        if self._line is None:
            return None
        loss = float(result.scalars["loss"][-1])
        speed = self._line.update(result.start + result.length, loss, self._feeder.wait_seconds)
        alone = 0 if speed is None else 1  # the last step is reported with the speed
        if count > alone:
            columns = {name: values[: count - alone] for name, values in result.scalars.items()}
            self.reports.steps(result.start + 1, columns)
        if speed is not None:
            last = {name: float(values[count - 1]) for name, values in result.scalars.items()}
            self.reports.scalars(result.start + count, last | speed.scalars())
            self.reports.flush()
        return speed

    def speed(self, steps: int) -> Speed:
        """Over this many steps, from the first dispatch to the last result."""
        return Speed.of(steps, self._size, self._seconds, self._feeder.wait_seconds)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Excludes the time of the block, which is not training, from the speed."""
        began = time.perf_counter()
        yield
        self._away += time.perf_counter() - began
        if self._line is not None:
            self._line.skip(time.perf_counter() - began)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Excludes the time of the block, in which training pauses to save, from the productive time."""
        began = time.perf_counter()
        yield
        self._saving += time.perf_counter() - began

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._line is not None:
            self._line.close()
        self.reports.__exit__(kind, error, trace)


class Recorder(AbstractContextManager):
    """Records one run. As a context manager, it also writes an end for an error that ends the run. run: its identity.

    Host 0 writes start and end; every host writes the bad records that it met. A fast_dev_run writes nothing.
    fence: raises if another run owns the work directory by now; then nothing is written."""

    def __init__(self, job: Job, source: Input, fence: Callable[[], None]) -> None:
        self._job, self._source, self._fence = job, source, fence
        self._workdir = None if job.config.fast_dev_run else str(job.config.workdir)
        self._provenance, self._known = source.info.provenance, set[int]()
        self.run, self._step = secrets.token_hex(8), 0

    @property
    def hint(self) -> Hint:
        """Names the command that shows the records of a step of this run."""
        if self._workdir is None or self._provenance is None:
            return no_hint
        return hint_of(self._workdir, by_loss=self._job.command is not None)

    def start(self, step: int, position: Any, parent: str | None) -> None:
        """Writes the start of the run after this step, from this position of its input. parent: see Start."""
        self._step, job = step, self._job
        mesh, count = job.placement.mesh, jax.process_count()
        writes = self._workdir is not None and jax.process_index() == 0
        self._write(
            Start(
                step,
                _now(),
                self._source.state(position),
                self._provenance,
                job.config.to_json(),
                command=job.command,
                versions=versions(),
                devices=f"{mesh.size} x {mesh.devices.flat[0].device_kind}, {count} process{'es' * (count > 1)}",
                run=self.run,
                parent=parent,
                reported=last_step(join(job.config.workdir, TRAIN)) if writes else None,
            )
        )

    def reached(self, step: int) -> None:
        """Notes the last step, and writes the bad records that the input has met since the last call."""
        self._step = step
        found = self._source.info.quarantine
        if self._workdir is None or self._provenance is None or len(found) == len(self._known):
            return
        new = {bad.record_id: bad.reason for bad in found if bad.record_id not in self._known}
        self._known |= new.keys()
        self._fence()
        append(
            self._workdir,
            BadRecords(self._provenance["fingerprint"], {str(number): why for number, why in new.items()}),
        )

    def end(self, stopped: Decision) -> None:
        """Writes the end of the run. stopped: what ended it early, if anything."""
        how = "interrupted: " if stopped.interrupted else "preempted: " if stopped.preempted else ""
        self._end(f"{how}{stopped.stop}" or "finished")

    def _end(self, reason: str) -> None:
        self._write(End(self._step, _now(), reason[:MOST_REASON]))

    def _write(self, line: HistoryLine) -> None:
        if self._workdir is not None and jax.process_index() == 0:
            self._fence()
            append(self._workdir, line)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        with contextlib.suppress(InfeedError):  # of the disk, or of a new owner: `error` says more
            how = {Interrupted: "interrupted: ", Preempted: "preempted: "}.get(type(error), "")
            self._end(f"{how}{error}" or type(error).__name__)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
