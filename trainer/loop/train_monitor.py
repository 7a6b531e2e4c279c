"""What the host records and checks in training: the result of every dispatch; in the history the
run's start, bad records and end; and that every value is finite (TrainerConfig.on_nan).

What the devices compute for the checks is in gradients.py."""

import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from pipeline.console.commands import program
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
from trainer.metrics.labels import OUTSIDE, REMEDY, told_outside
from trainer.reports.metrics_lines import last_step
from trainer.reports.progress import NOTABLE, ProgressLine, Speed, StepSize
from trainer.reports.segments import BadRecords, End, HistoryLine, Start, append
from trainer.reports.workdir import TRAIN
from trainer.reports.writer import Reports
from trainer.step.gradients import LOSS, Finder, checked_names, finder_of_broken
from trainer.step.steps import BAD_LEAF, UNLABELLED
from trainer.task import TrainState

Hint = Callable[[int], str]
"""A step -> the end of a sentence, and one that names a command; "" if no command can help."""
MOST_REASON = 300  # characters
NOTABLE_SECONDS = 5.0  # of waiting for the input
SETTLED_SECONDS = 60.0  # from then on the first batches, and the start of workers, weigh little
MOST_IN_A_ROW = 100  # skipped steps; beyond that the model no longer learns
log = logger("trainer")


@dataclass
class TrainMonitor(AbstractContextManager):
    """Monitors training from the state `begun` to step `end`, as a context manager: leaving it
    closes the reports.

    last: every scalar of the last step. unlabelled: rows without a label. productive_seconds: up to
    the last result, see Goodput. hint: ends messages about a step that went wrong."""

    session: Session
    feeder: Feeder
    size: StepSize
    begun: Begun
    end: int | None
    hint: Hint

    def __post_init__(self) -> None:
        config = self.session.job.config
        start = self.begun.step
        names = checked_names(self.begun.state.variables)
        finder = finder_of_broken(self.session.job.placement)
        self.check = FiniteCheck(config.on_nan, names, finder, self.hint)
        self.unlabelled = 0
        self.reports = Reports(config, TRAIN, start, self.session.ownership.fence)
        self.last: dict[str, float] = {}
        self.productive_seconds = 0.0
        self._line = None
        if jax.process_index() == 0:
            self._line = ProgressLine(
                start, self.end, self.size, config.log_every, slowest=self._slowest
            )
        self._step = start
        self._began = time.perf_counter()
        self._shared = self._began, self._busy_seconds
        self._seconds = self._away = self._saving = 0.0
        self._warned = False

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
        if self._seconds > SETTLED_SECONDS:
            self.warn_of_waiting()
        return speed

    def warn_of_waiting(self) -> None:
        """Warns, once, if this host has waited for its input for a notable share of the time."""
        waited = self.feeder.wait_seconds
        if not self._warned and waited > max(NOTABLE_SECONDS, NOTABLE * self._seconds):
            self._warned = True
            log.warning(
                "training has waited for its input for %.0f %% of the time. More input workers or "
                "a cache may help: see docs/performance.md",
                100 * waited / max(waited, self._seconds),
            )

    def _check_labels(self, result: DispatchResult) -> None:
        outside = {
            name: result.scalars.pop(name) for name in [*result.scalars] if name.startswith(OUTSIDE)
        }
        for i in range(result.length):
            if problem := told_outside({name: counts[i] for name, counts in outside.items()}):
                raise InputError(
                    f"step {result.start + i + 1} has {problem}. No checkpoint contains it; the "
                    "same command resumes from the newest checkpoint. "
                    f"{REMEDY}{self.hint(result.start + i + 1)}"
                )
        missing = int(np.sum(result.scalars.pop(UNLABELLED, 0)))
        if missing and not self.unlabelled:
            log.warning(
                "training: %s up to step %d had no label; such rows have no part in the loss",
                counted(missing, "row"),
                result.end,
            )
        self.unlabelled += missing

    @property
    def _busy_seconds(self) -> float:
        """That this host has spent on waiting for its input and on work of its own."""
        return self.feeder.wait_seconds + self.session.activity.host_seconds

    def _slowest(self) -> dict[str, Any]:
        """The fields of Speed about the slowest host, on host 0, to which the others tell their
        shares."""
        before, busy_before = self._shared
        now = time.perf_counter()
        busy = self._busy_seconds
        self._shared = now, busy
        return self.session.supervisor.slowest((busy - busy_before) / (now - before))

    def _write(self, result: DispatchResult, count: int) -> Speed | None:
        if self._line is None:
            every = self.session.job.config.log_every
            if self._step // every != result.end // every:
                self._slowest()
            self._step = result.end
            return None
        loss = float(result.scalars["loss"][-1])
        speed = self._line.update(result.end, loss, self.feeder.wait_seconds)
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
        return Speed.of(steps, self.size, self._seconds, self.feeder.wait_seconds)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Excludes the time of the block, which is not training, from the speed."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._away += seconds
        if self._line is not None:
            self._line.skip(seconds)

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
        self._workdir = str(self.job.config.workdir)
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


@dataclass
class FiniteCheck:
    """Checks the `_bad_leaf` of every step, a number in the checked `names`. skipped: how many
    steps were skipped. hint: ends messages about a step."""

    on_nan: OnNan
    names: list[str]
    finder: Finder
    hint: Hint

    def __post_init__(self) -> None:
        self.skipped = 0
        self._in_a_row = 0

    def reported(self, bad: np.ndarray) -> int:
        """How many steps of a dispatch to report: all, or up to the broken one that ends the
        run."""
        return (
            int(np.argmax(bad >= 0)) + 1
            if self.on_nan == "raise" and (bad >= 0).any()
            else len(bad)
        )

    def observe(self, result: DispatchResult, bad: np.ndarray) -> None:
        """Raises NanError, naming the first broken step and the first broken array, unless such
        steps are skipped."""
        for i, leaf in enumerate(bad.tolist()):
            if leaf < 0:
                self._in_a_row = 0
                continue
            self._in_a_row += 1
            step = result.start + i + 1
            loss = float(result.scalars["loss"][i])
            name = self.names[leaf]
            value = str(loss) if name == LOSS else f"not finite (the loss is {loss:.4g})"
            problem = f"after step {step} {name} is {value}"
            if self.on_nan == "raise":
                raise NanError(
                    f"{problem}. No checkpoint contains it; the same command resumes from the "
                    "newest checkpoint. Lower the learning rate, clip the gradient, or skip such "
                    "steps (--on-nan skip). Check the records of that step (each label must be "
                    f"below the number of the model's classes){self.hint(step)}"
                )
            self.skipped += 1
            log.warning(
                "%s: skipped the step (%d so far)%s", problem, self.skipped, self.hint(step)
            )
            if self._in_a_row > MOST_IN_A_ROW:
                raise NanError(
                    f"{problem}, as in the {MOST_IN_A_ROW} steps before it. Skipping steps does "
                    "not help here."
                )

    def begin(self, step: int, state: TrainState) -> Callable[[], None]:
        """Begins to check a state that is about to be saved. The result waits for the devices, in
        any thread, and raises NanError if an array is not finite, including the optimizer's."""
        broken = self.finder(state) if self.on_nan != "ignore" else str

        def verify() -> None:
            if name := broken():
                raise NanError(
                    f"at step {step} {name} is not finite, though the loss, the gradients and the "
                    "model are. No checkpoint contains it; the same command resumes from the "
                    "newest checkpoint. Check the optimizer."
                )

        return verify
