"""A thread that works ahead: runs an iterator and keeps a bounded amount of what it yields.

Reading and decoding each run in one. Whoever holds it can leave at any time: closing never waits for the source,
which may be a stalled disk; waiting for it may have a bound. Stdlib only."""

import atexit
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from pipeline.stall import checked_stall_seconds, stalled

__all__ = ["Background"]

T = TypeVar("T")
EXIT_WAIT_SECONDS = 1.0  # for all threads together
CHECK_SECONDS = 0.2  # between two checks of a `next` that waits


class _TooLate(Exception):  # noqa: N818
    """Nothing came in so many seconds. Not a TimeoutError: a source may raise one of its own."""


class _Shelf(Generic[T]):
    """What the thread and the holder share; the thread must not keep the holder alive."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self.changed = threading.Condition()
        self.items: deque[tuple[T, int]] = deque()
        self.limit, self.held = limit, 0
        self.finished = self.closed = False
        self.error: BaseException | None = None

    def put(self, item: T, cost: int) -> bool:
        with self.changed:
            # One item always fits, or an item over the limit would wait for ever.
            self.changed.wait_for(lambda: self.closed or not self.items or self.held + cost <= self.limit())
            if not self.closed:
                self.items.append((item, cost))
                self.held += cost
                self.changed.notify_all()
            return not self.closed

    def get(self, seconds: float | None, check: Callable[[], bool]) -> T:
        left = full = math.inf if seconds is None else seconds
        with self.changed:
            while not self.changed.wait_for(self._ready, min(left, CHECK_SECONDS)):
                left = full if check() else left - CHECK_SECONDS
                if left <= 0:
                    raise _TooLate(seconds)
            if self.items and not self.closed:
                item, cost = self.items.popleft()
                self.held -= cost
                self.changed.notify_all()
                return item
            error, self.error = self.error, None
        if error is not None and not self.closed:
            raise error
        raise StopIteration

    def _ready(self) -> bool:
        return bool(self.closed or self.items or self.finished)

    def finish(self, error: BaseException | None) -> None:
        with self.changed:
            self.finished, self.error = True, error
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


def _work(shelf: _Shelf[T], source: Iterator[T], cost: Callable[[T], int]) -> None:
    error = None
    try:
        for item in source:
            if not shelf.put(item, cost(item)):
                break
    except BaseException as e:
        error = e
    finally:
        if hasattr(source, "close"):  # a generator: its `finally` runs here, in the thread that ran the rest
            source.close()  # pyright: ignore[reportAttributeAccessIssue]
        shelf.finish(error)


class Background(Generic[T], Iterator[T]):
    """Yields what `source` yields, in order, while a thread works ahead by items of at most `limit` cost in all.

    limit: a number, or a function of what the source itself holds at the moment; it is called while an item waits.
    An exception of the source is raised by `next` as it was: same type, same text. After `close`, or when the
    holder is dropped, `next` stops, and the thread ends as soon as the source gives it control again.

    stall_seconds: how long one `next` may wait; None: for ever. After that it logs the stacks of all threads,
    closes, and raises StallError. The time between two calls does not count. OptionError unless more than 0.
    check: called now and then while `next` waits. Where it is true the source is alive, and the bound begins anew; what
    it raises `next` raises, and the one after goes on."""

    def __init__(
        self,
        source: Iterable[T],
        *,
        limit: int | Callable[[], int],
        cost: Callable[[T], int] = lambda _: 1,
        name: str = "infeed",
        stall_seconds: float | None = None,
        check: Callable[[], bool] = lambda: False,
    ) -> None:
        self._check = check
        self._stall_seconds = None if stall_seconds is None else checked_stall_seconds(stall_seconds)
        self._shelf: _Shelf[T] = _Shelf(limit if callable(limit) else lambda: limit)
        arguments = (self._shelf, iter(source), cost)
        # A daemon: a thread inside a stalled read cannot be interrupted and must not keep the process alive.
        self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._shelf.close).atexit = False
        _alive.add(self)

    def __next__(self) -> T:
        try:
            return self._shelf.get(self._stall_seconds, self._check)
        except _TooLate as late:
            error = stalled(f"input from thread {self._thread.name!r}", *late.args)
        self.close()
        raise error

    def close(self) -> None:
        """Ends the iteration, also for a thread that waits in `next`. Returns at once; may be called twice."""
        self._shelf.close()

    def join(self, timeout_seconds: float) -> bool:
        """Waits until the thread has ended, at most so long; whether it has."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()


_alive: "weakref.WeakSet[Background]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread inside TensorFlow while the interpreter goes down can crash it, so they get a moment to end.
    threads = list(_alive)
    for thread in threads:
        thread.close()
    end = time.monotonic() + EXIT_WAIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
