"""How long a call takes, over several, within a limited time. Needs no JAX.

The median ignores a single interruption by another program; the minimum and the maximum reveal many."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["MIN_REPETITIONS", "Clock", "Deadline", "Times", "repeat"]

Clock = Callable[[], float]
"""Seconds since any moment, as time.perf_counter."""

MIN_REPETITIONS = 3
_MAX_REPETITIONS = 7


@dataclass(frozen=True)
class Times:
    """Seconds that one call took: the median, the shortest and the longest of `repetitions`."""

    median: float
    shortest: float
    longest: float
    repetitions: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times":
        """The times of calls, from the seconds that each took; there must be at least one."""
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds))


@dataclass(frozen=True)
class Deadline:
    """When a group of measurements has to end, in seconds of the clock."""

    at: float
    clock: Clock

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> "Deadline":
        """The deadline `seconds` from now."""
        return cls(clock() + seconds, clock)

    @property
    def seconds_left(self) -> float:
        """0.0 when it has passed."""
        return max(0.0, self.at - self.clock())

    def share(self, measurements: int) -> "Deadline":
        """The deadline of the next of `measurements` that share the remaining time equally."""
        return self.after(self.seconds_left / measurements, self.clock)


def repeat(call: Callable[[], object], deadline: Deadline, prepare: Callable[[], object] = lambda: None) -> Times:
    """Times of call(), which returns when its work is done. The caller has called it once before: that compiled it.

    3 repetitions, and up to 7 if they end before the deadline. prepare: called before each of them, and not timed, as
    is releasing what call() returns."""
    clock, seconds = deadline.clock, []
    while len(seconds) < _MAX_REPETITIONS:
        if len(seconds) >= MIN_REPETITIONS and statistics.median(seconds) > deadline.seconds_left:
            break
        prepare()
        began = clock()
        result = call()
        seconds.append(clock() - began)
        del result
    return Times.of(seconds)
