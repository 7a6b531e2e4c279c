"""The threads that decode the rows of a batch, if that pays."""

import contextlib
import functools
import os
import select
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.machine import num_cores

_FIRST, _MEASURED, _PART = 4, 9, 8  # rows
THREADS: int | None = None  # None: one per core. Worker processes share the cores
_MOST_THREADS = 8  # sixteen decode a fifth fewer photographs: they wait for the GIL
_SLOW = 100e-6  # seconds of CPU time per row
_MOST_SECONDS = 0.1  # of measuring one row: an op may hang


class RowThreads:
    """Applies a function to the rows of a batch, in one thread per core if that pays.

    Decoders of images release the GIL, so photographs are decoded on all cores. If a row takes less
    than 100 us, threads mostly wait for each other and take half as long again. The previous batch
    decides which it is."""

    def __init__(self) -> None:
        self._slow: bool | None = None
        self.gil_share: float | None = None
        """The share of a row's time for which its ops hold the GIL; None if rows do not take
        long."""

    def __call__(self, rows: int, apply: Callable[[range], None]) -> None:
        """Calls `apply` with ranges that cover 0 to `rows`. Raises the error of the first range
        that has one."""

        def seconds_per_row(some: range) -> float:
            began = time.thread_time()
            apply(some)
            return (time.thread_time() - began) / max(len(some), 1)

        begin = 0
        if self._slow is None:
            begin = min(_FIRST, rows)
            self._slow = seconds_per_row(range(begin)) > _SLOW
            if self._slow and rows >= begin + _MEASURED:
                ends = range(begin + 1, begin + 1 + _MEASURED)
                shares = [_gil_share(range(end - 1, end), apply) for end in ends]
                self.gil_share = statistics.median(shares)
                begin = ends.stop - 1
        if self._slow:
            part = max(1, min(_PART, (rows - begin) // _num_threads()))
            parts = [range(at, min(at + part, rows)) for at in range(begin, rows, part)]
            took = list(_pool().map(seconds_per_row, parts))
        else:
            took = [seconds_per_row(range(begin, rows))]
        self._slow = max(took, default=0.0) > _SLOW


def _gil_share(row: range, apply: Callable[[range], Any]) -> float:
    """The share of the time for which this thread waits for the GIL, which it requests all the
    time, while another one makes a row. Waiting for a core does not count, in either thread."""

    def make() -> float:
        before = _waited_for_a_core()
        apply(row)
        return _waited_for_a_core() - before

    began = time.perf_counter()
    before = time.thread_time() + _waited_for_a_core()
    making = _pool().submit(make)
    while not making.done() and time.perf_counter() < began + _MOST_SECONDS:
        select.select((), (), (), 0)  # gives up the GIL; time.sleep(0) sleeps for 50 us
    seconds = time.perf_counter() - began
    waited = seconds - (time.thread_time() + _waited_for_a_core() - before)
    return min(1.0, max(0.0, waited / max(seconds - making.result(), 1e-9)))


def _waited_for_a_core() -> float:
    """Seconds for which this thread has waited for a core; 0 where the system is not Linux."""
    with contextlib.suppress(OSError):
        return 1e-9 * int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return 0.0


def _num_threads() -> int:
    return min(THREADS or num_cores(), _MOST_THREADS)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    # not infeed-: no batches own them
    return ThreadPoolExecutor(_num_threads(), "infeed_rows")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads
