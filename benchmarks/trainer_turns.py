"""Loops that run by turns, so that all meet the same machine: each in a thread that waits between its turns.

Keras's process loads it, too: stdlib only."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Ended", "Loop", "Marks", "Turn"]

WARM = 4  # marks of a turn that do not count: what was prepared in the pause is used up
QUIET_SECONDS, MOST_SECONDS = 0.02, 5.0


class Ended(Exception):  # noqa: N818
    """There are no more turns."""


class Turn(NamedTuple):
    """What was measured. cpu_seconds: of all threads of the process."""

    steps: int
    seconds: float
    cpu_seconds: float


class Marks:
    """What a loop calls each time it knows of more steps that they are done. Measures turns, and waits between them.

    wait() -> how many marks the next turn measures; 0 ends the loop, by Ended."""

    def __init__(self, wait: Callable[[], int], report: Callable[[Turn], Any]) -> None:
        self._wait, self._report = wait, report
        self._count, self._wanted, self._began = 0, wait(), (0, 0.0, 0.0)

    def __call__(self, steps: int) -> None:
        """steps: done since the loop began."""
        self._count += 1
        if self._count < WARM:
            return
        now = (steps, time.perf_counter(), time.process_time())
        if self._count == WARM:
            self._began = now
        elif self._count == WARM + self._wanted:
            began = self._began
            self._report(Turn(now[0] - began[0], now[1] - began[1], now[2] - began[2]))
            self._count, self._wanted = 0, self._wait()
            if not self._wanted:
                raise Ended


class Loop:
    """Runs `train(mark)` in a thread, by turns."""

    def __init__(self, train: Callable[[Marks], None]) -> None:
        self._asked: queue.Queue[int] = queue.Queue()
        self._told: queue.Queue[Turn | Exception] = queue.Queue()
        self._train = train
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def turn(self, marks: int) -> Turn:
        """One turn; before it ends, the process has come to rest."""
        self._asked.put(marks)
        found = self._told.get()
        if isinstance(found, Exception):
            raise found
        _rest()
        return found

    def close(self) -> None:
        """Ends the loop."""
        self._asked.put(0)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._train(Marks(self._asked.get, self._told.put))
            self._told.put(RuntimeError("the loop ended before its turns"))
        except Ended:
            return
        except Exception as error:
            self._told.put(error)


def _rest() -> None:
    # A feeder fills its queue, and a dispatch may still run: that is no part of the next loop's turn.
    end = time.perf_counter() + MOST_SECONDS
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(QUIET_SECONDS)
        if time.process_time() - used < QUIET_SECONDS / 10:
            return
