"""When a run reported its steps: the wall times in its TensorBoard event files, read without TensorBoard.

metrics.jsonl has a line per step and no times; the event files next to it have the same points with the time at which
the host wrote them, in every version of infeed. Of each event only the first bytes are parsed. Needs no JAX."""

import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.shards.record import FRAME_BYTES, HEADER_BYTES
from trainer.events.growing_files import Progress, ignored, matching, pieces
from trainer.workdir import EVENTS

__all__ = ["EventTimes", "Process", "read_event_times"]

LEAST_EVENT_BYTES, MOST_EVENT_BYTES = 9, 1 << 28
_LENGTH, _TIME = struct.Struct("<Q"), struct.Struct("<d")
_WALL_TIME, _STEP, _SESSION_LOG = 0x09, 0x10, 0x3A  # tags of an Event's fields: 1, 2 and 7


@dataclass
class Process:
    """A process of a training run: it began to report at this time, with this step, and last reported that step."""

    began: float
    first: int
    ended: float
    last: int


@dataclass(frozen=True)
class EventTimes:
    """steps: int64 [n], ascending; times: float64 [n], as time.time(), when the points of these steps were written.

    processes: those that trained, the earliest first; none for an evaluation. Of steps that several of them trained,
    the times are those of the last one, as in metrics.jsonl."""

    steps: np.ndarray
    times: np.ndarray
    processes: list[Process] = field(default_factory=list)

    def of(self, steps: np.ndarray) -> np.ndarray:
        """float64 [n]: the times of these steps; NaN where there is no event."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        at = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return np.where(self.steps[at] == steps, self.times[at], np.nan)


def read_event_times(directory: str, progress: Progress = ignored) -> EventTimes:
    """The times in the event files of a directory; empty if there are none.

    The rest of a file is left out where an event is incomplete, as a killed process may leave it, or damaged."""
    steps, times, processes = array("q"), array("d"), list[Process]()
    for name, size in matching(directory, EVENTS).items():
        for time, step, begins in _events(pieces(directory, name, size, progress)):
            if begins:
                processes.append(Process(time, step, time, step - 1))
                while steps and steps[-1] >= step:  # it trains them again
                    steps.pop()
                    times.pop()
            elif processes and step < processes[-1].first:
                continue  # the settings, which are written at the step before
            elif step:
                steps.append(step)
                times.append(time)
                if processes:
                    processes[-1].ended, processes[-1].last = time, step
    return _sorted(np.frombuffer(steps, np.int64), np.frombuffer(times), processes)


def _sorted(steps: np.ndarray, times: np.ndarray, processes: list[Process]) -> EventTimes:
    order = np.argsort(steps, kind="stable")
    steps, times = steps[order], times[order]
    last = np.append(np.diff(steps) > 0, True)[: len(steps)]  # a checkpoint's images are events of the same step
    return EventTimes(steps[last], times[last], processes)


def _events(parts: Iterable[bytes]) -> Iterator[tuple[float, int, bool]]:
    """(wall time, step, whether a process begins with it) of each event of a file."""
    data = b""
    for part in parts:
        data, at = data + part, 0
        while at + FRAME_BYTES <= len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            first = at + HEADER_BYTES
            if not LEAST_EVENT_BYTES <= length <= MOST_EVENT_BYTES or data[first] != _WALL_TIME:
                return
            if at + FRAME_BYTES + length > len(data):
                break
            yield _event(data[first : first + length])
            at += FRAME_BYTES + length
        data = data[at:]


def _event(data: bytes) -> tuple[float, int, bool]:
    (time,), at = _TIME.unpack_from(data, 1), LEAST_EVENT_BYTES
    step = shift = 0
    if data[at : at + 1] == bytes([_STEP]):
        more = True
        while more and (at := at + 1) < len(data):
            step |= (data[at] & 0x7F) << shift
            more, shift = bool(data[at] & 0x80), shift + 7
        step, at = 0 if more else step, at + 1
    return time, step, data[at : at + 1] == bytes([_SESSION_LOG])
