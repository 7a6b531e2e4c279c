"""The threads that apply ops to the records of a batch."""

import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["RowThreads"]

_FIRST, _PART = 4, 8  # rows
_SLOW = 100e-6  # seconds of CPU time per row


class RowThreads:
    """Applies a function to the rows of a batch, in as many threads as there are cores, if that pays.

    Python's threads take turns at its lock, which the decoders of images release: photographs are decoded on all cores.
    But where a row takes less than 100 us, threads mostly wait for each other, and take half as long again. Rows of the
    batch before show which it is."""

    def __init__(self) -> None:
        self._slow: bool | None = None

    def __call__(self, rows: int, apply: Callable[[range], None]) -> None:
        """Calls `apply` with ranges that cover 0 to `rows`. Raises the error of the first range that has one."""

        def seconds_per_row(some: range) -> float:
            began = time.thread_time()
            apply(some)
            return (time.thread_time() - began) / max(len(some), 1)

        begin = 0
        if self._slow is None:
            begin = min(_FIRST, rows)
            self._slow = seconds_per_row(range(begin)) > _SLOW
        if self._slow:
            parts = [range(at, min(at + _PART, rows)) for at in range(begin, rows, _PART)]
            took = list(_pool().map(seconds_per_row, parts))
        else:
            took = [seconds_per_row(range(begin, rows))]
        self._slow = max(took, default=0.0) > _SLOW


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "infeed_rows")  # not infeed-: no batches own them


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads
