"""What the host records and checks in training: the result of every dispatch; in the history the
run's start, bad records and end; and that every value is finite (TrainerConfig.on_nan).

What the devices compute for the checks is in gradients.py."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from pipeline.errors import InfeedError, InputError, NanError
from pipeline.logs import logger
from pipeline.sizes import counted
from pipeline.storage.storage import join
from trainer.checkpointing.contents import versions
from trainer.config import OnNan
from trainer.hosts.exchange import Decision
from trainer.hosts.exits import Interrupted, Preempted
from trainer.inputs import Input
from trainer.loop.dispatching import DispatchResult
from trainer.loop.feed import Feeder
from trainer.loop.job import Job
from trainer.loop.session import Begun, Session
from trainer.mesh.batch_spec import batch_struct
from trainer.mesh.placement import Placement
from trainer.metrics.labels import OUTSIDE, REMEDY, told_outside
from trainer.reports.metrics_lines import last_step
from trainer.reports.progress import ProgressLine, Speed, StepSize
from trainer.reports.segments import (
    BadRecords,
    End,
    Hint,
    HistoryLine,
    Start,
    append,
    hint_of,
    no_hint,
)
from trainer.reports.workdir import TRAIN
from trainer.reports.writer import Reports
from trainer.step.gradients import LOSS, checked_names, finder_of_broken
from trainer.step.steps import BAD_LEAF, UNLABELLED
from trainer.task import TrainState

MOST_REASON = 300  # characters
MOST_IN_A_ROW = 100  # skipped steps; beyond that the model no longer learns
log = logger("trainer")


class TrainMonitor(AbstractContextManager):
    """Monitors training from the state `begun` to step `end`, as a context manager: leaving it
    closes the reports.

    last: every scalar of the last step. unlabelled: rows without a label. productive_seconds: up to
    the last result, see Goodput. hint: ends messages about a step that went wrong."""

    def __init__(
        self,
        session: Session,
        feeder: Feeder,
        size: StepSize,
        begun: Begun,
        end: int | None,
        *,
        hint: Hint,
    ) -> None:
        config = session.job.config
        start = begun.step
        self.check = FiniteCheck(config.on_nan, begun.state, session.job.placement, hint)
        self.unlabelled = 0
        self._hint = hint
        self.reports = Reports(config, TRAIN, start, session.ownership.fence)
        self.last: dict[str, float] = {}
        self.productive_seconds = 0.0
        self._feeder = feeder
        self._size = size
        self._session = session
        self._line = None
        if jax.process_index() == 0:
            self._line = ProgressLine(start, end, size, config.log_every, slowest=self._slowest)
        self._step = start
        self._began = time.perf_counter()
        self._shared = self._began, self._busy_seconds
        self._seconds = self._away = self._saving = 0.0

    def observe(self, result: DispatchResult) -> Speed | None:
        """Handles a dispatch result; returns the speed when a new one is logged, on host 0.

        NanError for a step with non-finite values, if these end the run; InputError for one with a
        label outside of the classes."""
        bad = result.scalars.pop(BAD_LEAF, np.full(result.length, -1))
        self._check_labels(result)
        speed = self._write(result, self.check.reported(bad))
        self.check.observe(result, bad)
        self._seconds = time.perf_counter() - self._began - self._away
        self.productive_seconds = self._seconds - self._saving
        self.last = {name: float(values[-1]) for name, values in result.scalars.items()}
        return speed

    def _check_labels(self, result: DispatchResult) -> None:
        outside = {
            name: result.scalars.pop(name) for name in [*result.scalars] if name.startswith(OUTSIDE)
        }
        for i in range(result.length):
            if problem := told_outside({name: counts[i] for name, counts in outside.items()}):
                raise InputError(
                    f"step {result.start + i + 1} has {problem}. No checkpoint contains it; the "
                    "same command resumes from the newest checkpoint. "
                    f"{REMEDY}{self._hint(result.start + i + 1)}"
                )
        missing = int(np.sum(result.scalars.pop(UNLABELLED, 0)))
        if missing and not self.unlabelled:
            text = "training: %s up to step %d had no label; such rows have no part in the loss"
            log.warning(text, counted(missing, "row"), result.start + result.length)
        self.unlabelled += missing

    @property
    def _busy_seconds(self) -> float:
        """That this host has spent on waiting for its input and on work of its own."""
        return self._feeder.wait_seconds + self._session.activity.host_seconds

    def _slowest(self) -> dict[str, Any]:
        """The fields of Speed about the slowest host, on host 0, to which the others tell their
        shares."""
        (before, busy), self._shared = self._shared, (time.perf_counter(), self._busy_seconds)
        return self._session.supervisor.slowest(
            (self._shared[1] - busy) / (self._shared[0] - before)
        )

    def _write(self, result: DispatchResult, count: int) -> Speed | None:
        if self._line is None:
            step = self._step
            self._step = result.start + result.length
            every = self._session.job.config.log_every
            if step // every != self._step // every:
                self._slowest()
            return None
        loss = float(result.scalars["loss"][-1])
        speed = self._line.update(result.start + result.length, loss, self._feeder.wait_seconds)
        alone = speed is not None  # the last step is reported with the speed
        if count > alone:
            columns = {name: values[: count - alone] for name, values in result.scalars.items()}
            self.reports.steps(result.start + 1, columns)
        if speed is not None:
            last = {name: float(values[count - 1]) for name, values in result.scalars.items()}
            self.reports.scalars(result.start + count, last | speed.scalars())
            self.reports.flush()
        return speed

    def speed(self, steps: int) -> Speed:
        """The speed over this many steps, from the first dispatch to the last result."""
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
        """Excludes the time of the block, in which training pauses to save, from the productive
        time."""
        began = time.perf_counter()
        yield
        self._saving += time.perf_counter() - began

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._line is not None:
            self._line.close()
        self.reports.__exit__(kind, error, trace)


class Recorder(AbstractContextManager):
    """Records one run. As a context manager, it also writes an end for an error that ends the run.
    run: its identity.

    Host 0 writes start and end; every host writes the bad records that it met. A fast_dev_run
    writes nothing. fence: raises if another run owns the work directory by now; then nothing is
    written."""

    def __init__(self, job: Job, source: Input, fence: Callable[[], None]) -> None:
        self._job = job
        self._source = source
        self._fence = fence
        self._workdir = None if job.config.fast_dev_run else str(job.config.workdir)
        self._provenance = source.info.provenance
        self._known = set[int]()
        self.run = secrets.token_hex(8)
        self._step = 0

    @property
    def hint(self) -> Hint:
        """Names the command that shows the records of a step of this run."""
        if self._workdir is None or self._provenance is None:
            return no_hint
        return hint_of(self._workdir)

    def start(self, step: int, position: Any, parent: str | None) -> None:
        """Writes the start of the run after this step, from this position of its input. parent: see
        Start."""
        self._step = step
        job = self._job
        mesh = job.placement.mesh
        count = jax.process_count()
        axes = job.placement.axes
        batch = batch_struct(self._source.info.spec)
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
                devices=(
                    f"{mesh.size} x {mesh.devices.flat[0].device_kind}, {count} "
                    f"process{'es' * (count > 1)}"
                ),
                run=self.run,
                parent=parent,
                reported=last_step(join(job.config.workdir, TRAIN)) if writes else None,
                batch=axes.map(
                    lambda x, axis: [str(x.dtype), *x.shape[:axis], 1, *x.shape[axis + 1 :]], batch
                ),
            )
        )

    def reached(self, step: int) -> None:
        """Notes the last step, and writes the bad records that the input has met since the last
        call."""
        self._step = step
        quarantine = self._source.info.quarantine
        if self._workdir is None or self._provenance is None or len(quarantine) == len(self._known):
            return
        new = {bad.record_id: bad.reason for bad in quarantine if bad.record_id not in self._known}
        self._known |= new.keys()
        self._fence()
        append(
            self._workdir,
            BadRecords(
                self._provenance["fingerprint"], {str(number): why for number, why in new.items()}
            ),
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


class FiniteCheck:
    """Checks the `_bad_leaf` of every step. skipped: how many steps were skipped. hint: ends
    messages about a step."""

    def __init__(
        self, on_nan: OnNan, state: TrainState, placement: Placement, hint: Hint = no_hint
    ) -> None:
        self._broken = finder_of_broken(placement)
        self._on_nan = on_nan
        self.skipped = 0
        self._in_a_row = 0
        self._hint = hint
        self._names = checked_names(state.variables)

    def reported(self, bad: np.ndarray) -> int:
        """How many steps of a dispatch to report: all, or up to the broken one that ends the
        run."""
        return (
            int(np.argmax(bad >= 0)) + 1
            if self._on_nan == "raise" and (bad >= 0).any()
            else len(bad)
        )

    def observe(self, result: DispatchResult, bad: np.ndarray) -> None:
        """Raises NanError, naming the first broken step and the first broken array, unless such
        steps are skipped."""
        for i, leaf in enumerate(bad.tolist()):
            self._in_a_row = self._in_a_row + 1 if leaf >= 0 else 0
            if leaf >= 0:
                self._found(result, i, self._names[leaf])

    def for_save(self, step: int, state: TrainState) -> Callable[[], None]:
        """Begins to look; the result raises NanError if any array of the state is not finite,
        including the optimizer's."""
        broken = self._broken(state) if self._on_nan != "ignore" else str

        def verify() -> None:
            if name := broken():
                raise NanError(
                    f"at step {step} {name} is not finite, though the loss, the gradients and the "
                    "model are. No checkpoint contains it; the same command resumes from the "
                    "newest checkpoint. Check the optimizer."
                )

        return verify

    def _found(self, result: DispatchResult, i: int, name: str) -> None:
        step = result.start + i + 1
        loss = float(result.scalars["loss"][i])
        what = (
            f"{name} is {loss}"
            if name == LOSS
            else f"{name} is not finite (the loss is {loss:.4g})"
        )
        said = f"after step {step} {what}"
        if self._on_nan == "raise":
            raise NanError(
                f"{said}. No checkpoint contains it; the same command resumes from the newest "
                "checkpoint. Lower the learning rate, clip the gradient, or skip such steps "
                "(--on-nan skip). Check the records of that step (each label must be below the "
                f"number of the model's classes){self._hint(step)}"
            )
        self.skipped += 1
        log.warning("%s: skipped the step (%d so far)%s", said, self.skipped, self._hint(step))
        if self._in_a_row > MOST_IN_A_ROW:
            raise NanError(
                f"{said}, as in the {MOST_IN_A_ROW} steps before it. Skipping steps does not help "
                "here."
            )
