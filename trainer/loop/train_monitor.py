"""What the host does with the result of every dispatch of training: checks, reports and speed."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pipeline.errors import InputError
from pipeline.logs import logger
from pipeline.sizes import counted
from trainer.loop.dispatching import DispatchResult
from trainer.loop.feed import Feeder
from trainer.loop.finite_check import FiniteCheck
from trainer.loop.recorder import Hint
from trainer.loop.session import Begun, Session
from trainer.metrics.labels import OUTSIDE, REMEDY, told_outside
from trainer.reports.progress import NOTABLE, ProgressLine, Speed, StepSize
from trainer.reports.workdir import TRAIN
from trainer.reports.writer import Reports
from trainer.step.gradients import checked_names, finder_of_broken
from trainer.step.steps import BAD_LEAF, UNLABELLED

NOTABLE_SECONDS = 5.0  # of waiting for the input
SETTLED_SECONDS = 60.0  # from then on the first batches, and the start of workers, weigh little
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
                "training has waited for its input for %.0f %% of the time. More input workers, "
                "a cache, or images converted with --max-side may help: see docs/performance.md",
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
