"""What a person sees of a run: one live line on a terminal, else a plain line now and then."""

import dataclasses
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["ProgressLine", "Speed"]

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Speed:
    """Measured over a stretch of steps. input_wait: share of the time that the host waited for the input, 0..1."""

    steps_per_second: float
    examples_per_second: float
    input_wait: float

    @classmethod
    def of(cls, steps: int, batch: int, seconds: float, wait_seconds: float) -> "Speed":
        """From totals; `seconds` above 0."""
        rate = steps / seconds
        return cls(rate, rate * batch, min(1.0, wait_seconds / seconds))

    def scalars(self) -> dict[str, float]:
        """For TensorBoard."""
        return {f"speed/{name}": value for name, value in dataclasses.asdict(self).items()}

    def __str__(self) -> str:
        return (
            f"{self.steps_per_second:.4g} steps/s, {self.examples_per_second:,.0f} examples/s, "
            f"input wait {self.input_wait:.0%}"
        )


class ProgressLine:
    """Shows steps/s, examples/s, input wait, loss and time left. `update` after every look."""

    def __init__(
        self,
        start: int,
        end: int,
        batch: int,
        log_every: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._end, self._batch, self._log_every = end, batch, log_every
        self._clock = clock
        self._step, self._since, self._wait_seconds = start, clock(), 0.0
        self._bar: Progress | None = None
        out = sys.stderr if stream is None else stream
        if out.isatty():
            columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.description}"), console=Console(file=out))
            self._task = self._bar.add_task("", total=end, completed=start)
            self._bar.start()

    def update(self, step: int, loss: float, wait_seconds: float) -> Speed | None:
        """`wait_seconds`: waited for the input since the run began. The speed, each time log_every was passed."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
        if step // self._log_every == self._step // self._log_every and step != self._end:
            return None
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        speed = Speed.of(step - self._step, self._batch, seconds, wait_seconds - self._wait_seconds)
        self._step, self._since, self._wait_seconds = step, now, wait_seconds
        if self._bar is not None:
            self._bar.update(self._task, description=f"loss {loss:.4g}, {speed}")
        else:
            left = (self._end - step) / speed.steps_per_second
            log.info("step %d/%d: loss %.4g, %s, %.0f s left", step, self._end, loss, speed, left)
        return speed

    def close(self) -> None:
        """Leaves the last state on the terminal."""
        if self._bar is not None:
            self._bar.stop()
