"""The time axis of a page about runs: when points were written, when processes ended and others resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from trainer.pages.run_files import How, TrainingRun

UNITS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
ENDS = ("preempted", "interrupted", "killed")
AFTER: Mapping[How, str] = {"preempted": "a preemption", "interrupted": "an interrupt", "killed": "being killed"}


@dataclass(frozen=True)
class Clock:
    """Counts from the beginning of each run, in this unit."""

    unit: str

    @classmethod
    def of_runs(cls, runs: Sequence[TrainingRun]) -> "Clock":
        """In the largest unit that fits into the longest run at least twice."""
        longest = max((_seconds(run) for run in runs), default=0.0)
        return cls(next((unit for unit, seconds in UNITS.items() if longest >= 2 * seconds), "seconds"))

    def of(self, run: TrainingRun, times: np.ndarray) -> np.ndarray:
        """These times, as of time.time(), since the run began; NaN if that is not known."""
        return (times - (np.nan if run.began is None else run.began)) / UNITS[self.unit]

    def parts(self, run: TrainingRun, x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The points of each process: nothing was trained between them."""
        resumed = self.of(run, np.array([attempt.began for attempt in run.attempts[1:]]))
        cuts = np.searchsorted(x, resumed)
        return [part for part in zip(np.split(x, cuts), np.split(y, cuts), strict=True) if len(part[0])]

    def marks(self, run: TrainingRun) -> dict[str, list[float]]:
        """What happened -> when."""
        found: dict[str, list[float]] = {}
        for attempt in run.attempts[:-1]:
            if attempt.ended is not None and attempt.how != "finished":
                found.setdefault(_ended(attempt.how), []).append(attempt.ended)
        if run.attempts and run.attempts[-1].ended is not None and run.attempts[-1].how in ENDS:
            found.setdefault(_ended(run.attempts[-1].how), []).append(run.attempts[-1].ended)
        found["resumed"] = [attempt.began for attempt in run.attempts[1:]]
        return {what: self.of(run, np.array(times)).tolist() for what, times in found.items() if times}

    def saved(self, run: TrainingRun) -> list[float]:
        """When the checkpoints were saved."""
        times = [
            datetime.fromisoformat(page["time"]).timestamp() for page in run.checkpoints.values() if "time" in page
        ]
        return sorted(self.of(run, np.array(times)).tolist())

    @staticmethod
    def resumed_steps(run: TrainingRun) -> dict[str, list[float]]:
        """What happened -> after which steps a process resumed."""
        found: dict[str, list[float]] = {}
        for before, after in pairwise(run.attempts):
            what = f"resumed after {AFTER[before.how]}" if before.how in AFTER else "resumed"
            found.setdefault(what, []).append(after.start.step)
        return found


def _ended(how: How) -> str:
    return how if how in ENDS else "ended"


def _seconds(run: TrainingRun) -> float:
    """From the beginning of a run to the last that is known of it."""
    if run.began is None:
        return 0.0
    ends = [attempt.ended or attempt.began for attempt in run.attempts]
    return max([*ends, *run.train.times.values[-1:].tolist()]) - run.began


def duration(run: TrainingRun) -> str:
    """How long a run has taken so far, with the time between its processes: 1:02:03."""
    return str(timedelta(seconds=round(_seconds(run))))


def utc(time: float | None) -> str:
    """A time, as of time.time(), to read."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
