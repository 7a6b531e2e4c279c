"""What the host does with the result of every training dispatch: checks, reports, the progress line, callbacks."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np

from trainer.callbacks import LoopEnd
from trainer.events.progress import ProgressLine, Speed, StepSize
from trainer.events.reports import Reports
from trainer.events.sinks import Fence
from trainer.history.hints import Hint
from trainer.loop.dispatching import DispatchResult
from trainer.loop.feed import Feeder
from trainer.modes.finite import FiniteCheck
from trainer.modes.spikes import LossSpikes
from trainer.setup import Setup
from trainer.state import TrainState
from trainer.step_functions import BAD_LEAF

__all__ = ["TrainingMonitor"]


class TrainingMonitor(AbstractContextManager):
    """Monitors training from step `start` to `end` (None: of the input), as a context manager: leaving it closes the
    reports.

    last: every scalar of the last step. productive_seconds: up to the last result, see Goodput. stop: what callbacks
    call to end the training. fence: as in Reports. hint: ends messages about a step that went wrong."""

    def __init__(
        self,
        setup: Setup,
        feeder: Feeder,
        size: StepSize,
        state: TrainState,
        start: int,
        end: int | None,
        stop: Callable[[str], None],
        fence: Fence,
        hint: Hint,
    ) -> None:
        self._callbacks, self._stop = setup.callbacks, stop
        self.check, self._spikes = FiniteCheck(setup.config.on_nan, state, setup.placement, hint), LossSpikes(hint)
        self.last: dict[str, float] = {}
        self._feeder, self._start, self._size = feeder, start, size
        self.reports = Reports(setup.config, "train", start, fence)
        self._line = ProgressLine(start, end, size, setup.config.log_every) if jax.process_index() == 0 else None
        self._began = time.perf_counter()
        self._seconds = self._away = self._saving = self.productive_seconds = 0.0

    def observe(self, result: DispatchResult) -> None:
        """Handles one dispatch result. NanError for a step with non-finite values, if these end the run."""
        bad = result.scalars.pop(BAD_LEAF, np.full(result.length, -1))
        speed = self._write(result, self.check.reported(bad))
        self.check.observe(result, bad)
        if self._line is not None:  # one host is enough
            self._spikes.observe(result.start, result.scalars["loss"])
        self._seconds = time.perf_counter() - self._began - self._away
        self.productive_seconds = self._seconds - self._saving
        self.last = {name: float(values[-1]) for name, values in result.scalars.items()}
        for callback in self._callbacks:
            callback.on_loop_end(LoopEnd(result.start + result.length, result.scalars, self.reports, self._stop, speed))

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
