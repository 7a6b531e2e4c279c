"""What the main thread of a call does, and for how long it may: what a thread that looks after it
reads.

A host knows only itself. Stdlib only."""

import math
import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

from trainer.config import TrainerConfig

ASKED_SECONDS, ASKED_TIMES_USUAL = 10.0, 4  # without progress, or usual dispatches: see Doing.grace
# finished dispatches that determine what is usual; with fewer than LEAST, nothing is
RECENT, LEAST = (100, 3)
TIMES_USUAL = 20


class Doing(NamedTuple):
    """Something that the main thread does.

    limit: seconds that it may make no progress.
    waits: for devices or other hosts, so it need not be at fault.
    grace: the limit once the process was asked to end."""

    what: str
    limit: float = math.inf
    waits: bool = False
    grace: float = ASKED_SECONDS


class Dispatching:
    """A loop of dispatches. The main thread sets `launched`, calls `finish`, and sets `at` to what
    it does meanwhile."""

    DEVICES, INPUT, WORK = (
        "waiting for its devices",
        "waiting for its input",
        "at the work between two dispatches",
    )

    def __init__(self, start: int, limits: TrainerConfig | None) -> None:
        self.launched = self.finished = start
        self.at = self.WORK
        self._limits = limits
        self._last: tuple[float, int] | None = None
        self._per_step = deque[float](maxlen=RECENT)

    def finish(self, step: int, now: float) -> None:
        """Notes that the steps up to this one have finished. now: of time.perf_counter."""
        if self._last:
            self._per_step.append((now - self._last[0]) / (step - self._last[1]))
        self._last = now, step
        self.finished = step

    def now(self) -> Doing:
        """What the main thread does, and its limits now."""
        recent = list(self._per_step)  # in one piece: the main thread appends meanwhile
        usual = 0.0  # seconds that what is launched usually takes, if known
        if len(recent) >= LEAST:
            usual = statistics.median(recent) * max(1, self.launched - self.finished)
        grace = max(ASKED_SECONDS, ASKED_TIMES_USUAL * usual)
        if self._limits is None or self.at is self.INPUT:  # the feeder has a limit
            return Doing(self.at, grace=grace)
        limit = self._limits.work_seconds
        if self.at is self.WORK:
            return Doing(self.at, limit, grace=grace)
        what = (
            f"{self.at}: it has launched the steps up to {self.launched}, and {self.finished} are "
            "finished"
        )
        limit = max(self._limits.host_timeout_seconds, TIMES_USUAL * usual) if usual else limit
        return Doing(what, limit, True, grace)


D = TypeVar("D", Doing, Dispatching)


class Activity:
    """What the main thread of one call does, innermost last.

    limits: of the call; None: nothing is limited.
    saved: the last step that a checkpoint is known to have; None if there is none.
    host_seconds: that its loops have spent on work of this host."""

    def __init__(self, limits: TrainerConfig | None = None) -> None:
        self._limits = limits
        self._work = limits.work_seconds if limits else math.inf
        self.saved: int | None = None
        self.host_seconds, self._moves = 0.0, 0
        self._stack: list[Doing | Dispatching] = [Doing("between its dispatches", self._work)]

    def doing(
        self,
        what: str,
        limit: float | None = None,
        *,
        waits: bool = False,
        grace: float = ASKED_SECONDS,
    ) -> AbstractContextManager[Any]:
        """The block does this. limit: in seconds; default: work_seconds."""
        return self._inside(Doing(what, self._work if limit is None else limit, waits, grace))

    def saving(self) -> AbstractContextManager[None]:
        """The block saves: a process that was asked to end may take its time. Orbax has the same
        limit, for each of two saves, and waits for other hosts."""
        return self.doing("saving a checkpoint", 2 * self._work, waits=True, grace=2 * self._work)

    def dispatches(self, start: int) -> AbstractContextManager[Dispatching]:
        """The block is a loop from step `start` on."""
        return self._inside(Dispatching(start, self._limits))

    @contextmanager
    def _inside(self, doing: D) -> Iterator[D]:
        self._stack.append(doing)
        self._moves += 1
        try:
            yield doing
        finally:
            self._stack.remove(doing)  # the innermost, except where a generator is closed late
            self._moves += 1

    def now(self) -> tuple[object, Doing]:
        """A value that changes with any progress, and what is done now. For any thread."""
        last = self._stack[-1]
        if isinstance(last, Doing):
            return self._moves, last
        return (self._moves, last.launched, last.finished, last.at), last.now()
