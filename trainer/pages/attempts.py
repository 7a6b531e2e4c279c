"""The processes that trained in a work directory, one after the other: from which step, until when, how each ended."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

from trainer.events.event_times import Process
from trainer.history.segments import End, History, Start

__all__ = ["Attempt", "attempts_of"]

How = Literal["finished", "preempted", "interrupted", "stopped", "killed", "no end recorded", "not recorded"]
PREEMPTED, INTERRUPTED = ("preempted: ", "SIGTERM"), ("SIGINT",)


@dataclass(frozen=True)
class Attempt:
    """A process that trained from the state after a step, from and until these times, as time.time().

    reached: the last step that it is known to have trained. ended: when it ended; for a killed one, when it last wrote
    points; None if not known. how: killed, if another process came later and this one left no end; the last process
    without one has "no end recorded": it runs, or was killed. "not recorded": by a version of infeed that wrote no
    history. reason: the history's, "" if there is none."""

    after: int
    began: float
    reached: int
    ended: float | None
    how: How
    reason: str = ""
    start: Start | None = None


def attempts_of(history: History, processes: Sequence[Process]) -> list[Attempt]:
    """The earliest first. processes: from the event files, for what the history does not tell."""
    began = [_seconds(start.time) for start in history.starts]
    first = min(began, default=float("inf"))
    earlier = [process for process in processes if process.began < first]
    unrecorded = [Attempt(p.first - 1, p.began, p.last, p.ended, "not recorded") for p in earlier]
    return unrecorded + list(_recorded(history, processes))


def _recorded(history: History, processes: Sequence[Process]) -> Iterator[Attempt]:
    lines = [line for line in history.lines if isinstance(line, Start | End)]
    for line, following in pairwise([*lines, None]):
        if not isinstance(line, Start):
            continue
        began = _seconds(line.time)
        if isinstance(following, End):
            how, ended = _how(following.reason), _seconds(following.time)
            yield Attempt(line.step, began, following.step, ended, how, following.reason, line)
            continue
        until = float("inf") if following is None else _seconds(following.time)
        own = next((process for process in reversed(processes) if began <= process.began < until), None)
        reached, ended = (line.step, None) if own is None else (max(own.last, line.step), own.ended)
        if following is not None and line.run and following.parent == line.run:
            reached = max(reached, following.step)  # it saved that
        yield Attempt(line.step, began, reached, ended, "killed" if following else "no end recorded", "", line)


def _how(reason: str) -> How:
    if reason == "finished":
        return "finished"
    if reason.startswith(PREEMPTED):
        return "interrupted" if "SIGINT" in reason else "preempted"
    return "interrupted" if reason.startswith(INTERRUPTED) else "stopped"


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
