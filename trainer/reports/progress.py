"""Shows progress to a person: one live line on a terminal or in a notebook, otherwise a plain log
line at intervals.

Also the speed that it shows."""

import dataclasses
import logging
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TextIO, cast

from rich.file_proxy import FileProxy
from rich.progress import Progress, TextColumn
from rich.table import Column

from pipeline.console.console import Console
from pipeline.logs import logger
from pipeline.sizes import format_number

log = logger("trainer")

NOTEBOOK_SECONDS = 0.5  # between updates of a notebook's line: each is a message to the browser
NOTABLE = 0.1  # the share of its time from which on the slowest host is in the progress line
LIVE_SECONDS, LOG_SECONDS = 0.25, 30.0  # between two updates of a RecordsLine


@dataclass(frozen=True)
class Speed:
    """Measured over some steps: steps_per_second, and examples_per_second over all hosts.

    input_wait: share of the time that the host waited for the input, 0..1.
    tflops_per_second: of all devices together; None if the FLOPs of a step are unknown.
    mfu: its share of the devices' peak, 0..1; None if either is unknown.
    slowest_host: of several, the one that the others waited for.
    slowest_share: of the time in which it waited for its input or did work of its own, 0..1. None
        with one process."""

    steps_per_second: float
    examples_per_second: float
    input_wait: float
    tflops_per_second: float | None = None
    mfu: float | None = None
    slowest_host: int | None = None
    slowest_share: float | None = None

    @classmethod
    def of(cls, steps: int, size: "StepSize", seconds: float, wait_seconds: float) -> "Speed":
        """The speed from totals; `seconds` must be above 0."""
        rate = steps / seconds
        tflops = None if size.flops is None else rate * size.flops / 1e12
        mfu = None if tflops is None or size.peak_tflops is None else tflops / size.peak_tflops
        return cls(rate, rate * size.batch, min(1.0, wait_seconds / seconds), tflops, mfu)

    def scalars(self) -> dict[str, float]:
        """The numbers for TensorBoard."""
        return {
            f"speed/{name}": value
            for name, value in dataclasses.asdict(self).items()
            if value is not None
        }

    def __str__(self) -> str:
        text = (
            f"{format_number(self.steps_per_second)} steps/s, {self.examples_per_second:,.0f} "
            "examples/s, "
        )
        text += f"input wait {self.input_wait:.0%}"
        if self.mfu is not None:
            text += f", MFU {self.mfu:.1%}"
        if self.slowest_share and self.slowest_share > NOTABLE:
            share = f"{self.slowest_share:.0%} input wait and own work"
            text += f", host {self.slowest_host} is slowest ({share})"
        return text


@dataclass(frozen=True)
class StepSize:
    """A training step: its records and FLOPs, and the peak of all devices together. None:
    unknown."""

    batch: int
    flops: float | None = None
    peak_tflops: float | None = None


@dataclass
class ProgressLine:
    """Shows the loss, the time left, steps/s, examples/s and input wait. Call `update` after every
    dispatch.

    end: None if it is not known. Time and steps count from construction, so a compilation before is
    not part of the speed. slowest: the fields of Speed about the slowest host."""

    step: int
    end: int | None
    size: StepSize
    log_every: int
    stream: TextIO | None = None
    clock: Callable[[], float] = time.perf_counter
    slowest: Callable[[], Mapping[str, Any]] = dict

    def __post_init__(self) -> None:
        self._since = self.clock()
        self._wait_seconds = 0.0
        self._live = _live_line(
            "step", "the first steps", self.step, self.end, self.stream, self.clock
        )

    def update(self, step: int, loss: float, wait_seconds: float) -> Speed | None:
        """Returns the speed whenever log_every was passed. wait_seconds: waited for the input since
        the run started."""
        if self._live is not None:
            self._live.show(step)
        if step // self.log_every == self.step // self.log_every and step != self.end:
            return None
        now = self.clock()
        seconds = max(now - self._since, 1e-9)
        speed = Speed.of(step - self.step, self.size, seconds, wait_seconds - self._wait_seconds)
        speed = dataclasses.replace(speed, **self.slowest())
        self.step = step
        self._since = now
        self._wait_seconds = wait_seconds
        left = _left(step, self.end, speed.steps_per_second)
        text = f"loss {loss:.4g}{left}, {speed}"
        if self._live is not None:
            self._live.show(step, text)
        else:
            log.info("step %s: %s", _share_of(step, self.end), text)
        return speed

    def skip(self, seconds: float) -> None:
        """Leaves out time that was spent on something else."""
        self._since += seconds

    def close(self) -> None:
        """Leaves the last state on the terminal."""
        if self._live is not None:
            self._live.close()


class RecordsLine:
    """Shows how many records are done, their rate and the time left, in a `with` statement. Call
    `add` after some.

    done: what happened to them, in one word, such as "evaluated". total: None if it is not known.
    shown: False to show nothing, as on all hosts but one. Without a terminal or a notebook, a log
    line every 30 seconds."""

    def __init__(
        self,
        done: str,
        total: int | None,
        shown: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._done = done
        self._total = total
        self._clock = clock
        self._records = self._first = 0
        self._began = self._updated = clock()
        self._shown = shown
        self._live = None
        if shown:
            self._live = _live_line(done, "the first records", 0, total, stream, clock)

    def __enter__(self) -> "RecordsLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.show(self._records, self._text(self._clock()) or "done")
            self._live.close()

    def add(self, records: int) -> None:
        """Counts this many more records as done."""
        now = self._clock()
        if not self._records:  # they took a compilation, too
            self._began = now
            self._first = records
        self._records += records
        pause = LOG_SECONDS if self._live is None else LIVE_SECONDS
        if not self._shown or now - self._updated < pause:
            return
        self._updated = now
        text = self._text(now)
        if self._live is not None:
            self._live.show(self._records, text)
        else:
            share = _share_of(self._records, self._total)
            log.info("%s %s%s", self._done, share, f": {text}" if text else "")

    def _text(self, now: float) -> str | None:
        """None if there is no rate yet."""
        rate = (self._records - self._first) / max(now - self._began, 1e-9)
        if not rate:
            return None
        return f"{rate:,.0f} records/s{_left(self._records, self._total, rate)}"


def _share_of(step: int, end: int | None) -> str:
    """Such as "7/40"; "7" if the end is not known."""
    return str(step) if end is None else f"{step}/{end}"


def _left(step: int, end: int | None, rate: float) -> str:
    """The time left, such as ", 0:01:30 left"; "" if the end is not known."""
    if end is None:
        return ""
    return f", {timedelta(seconds=round(max(0, end - step) / rate))} left"


def _live_line(
    what: str,
    text: str,
    start: int,
    end: int | None,
    stream: TextIO | None,
    clock: Callable[[], float],
) -> "_NotebookLine | _TerminalLine | None":
    """The line "`what` start/end: `text`" of a terminal or a notebook; None if there is neither."""
    out = stream or sys.stderr
    if Console().is_jupyter:
        return _NotebookLine(what, text, start, end, clock)
    return _TerminalLine(what, text, start, end, out) if Console(file=out).is_terminal else None


@dataclass
class _NotebookLine:
    """A line in the output of the notebook's cell, replaced in place: a saved notebook has only the
    last one.

    rich's own live display needs ipywidgets, and shows nothing without it."""

    what: str
    text: str
    step: int
    end: int | None
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._id = f"infeed-{secrets.token_hex(8)}"
        self._shown = self.clock()
        self._display(update=False)

    def show(self, step: int, text: str | None = None) -> None:
        """text: None to keep the one before."""
        self.step = step
        self.text = text or self.text
        if self.clock() - self._shown >= NOTEBOOK_SECONDS:
            self._shown = self.clock()
            self._display()

    def close(self) -> None:
        """Leaves the last state where it is."""
        self._display()

    def _display(self, update: bool = True) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        share = "" if self.end is None else f" ({self.step / self.end:.0%})"
        line = f"{self.what} {_share_of(self.step, self.end)}{share}: {self.text}"
        display({"text/plain": line}, raw=True, display_id=self._id, update=update)


class _TerminalLine:
    """A line that is rewritten in place; log lines appear above it."""

    def __init__(self, what: str, text: str, start: int, end: int | None, out: TextIO) -> None:
        share = "" if end is None else "/{task.total} ({task.percentage:.0f}%)"
        line = f"{what} {{task.completed}}{share}: {{task.description}}"
        column = TextColumn(
            line, markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        )
        console = Console(file=out)
        self._progress = Progress(column, console=console, refresh_per_second=4)
        self._task = self._progress.add_task(text, completed=start, total=end)
        self._progress.start()
        handlers = [
            each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)
        ]
        self._out = out
        self._handlers = [each for each in handlers if each.stream is out]
        for handler in self._handlers:
            handler.setStream(cast(TextIO, FileProxy(console, out)))

    def show(self, step: int, text: str | None = None) -> None:
        """text: None to keep the one before."""
        self._progress.update(
            self._task, completed=step, description=text, refresh=text is not None
        )

    def close(self) -> None:
        """Leaves the last state where it is."""
        for handler in self._handlers:
            handler.setStream(self._out)
        self._progress.stop()
