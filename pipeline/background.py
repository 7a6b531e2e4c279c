"""A thread that runs an iterator ahead of its consumer and keeps a bounded amount of what it
yields.

Reading and decoding each use one. The consumer can leave at any time: closing never waits for the
source, which may be a stalled disk, and `next` may have a time limit. A wait that took too long
ends with the stacks of all threads in the log. Stdlib only; reads nothing from disk, which may be
what stalls."""

import atexit
import contextlib
import gc
import itertools
import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Generic, TypeVar

from pipeline.checks import check_number
from pipeline.errors import InfeedError, StallError
from pipeline.logs import log
from pipeline.user_code import keeps_all_frames


def checked_stall_seconds(stall_seconds: float) -> float:
    """The time limit, capped to what locks accept; infinity waits forever. OptionError unless above
    0."""
    check_number("stall_seconds", stall_seconds, above=0, more="; float('inf') waits forever")
    return min(stall_seconds, threading.TIMEOUT_MAX)


def stalled(awaited: str, seconds: float) -> StallError:
    """Logs the stacks of all threads. Returns the error to raise.

    awaited: what did not arrive, and from where."""
    error = StallError(
        f"waited {seconds:g} s for {awaited}, and nothing came. The log has the stack of every "
        "thread (reading is in 'infeed-read') and shows where it hangs. Check the storage; if it "
        "is only slow, pass a larger stall_seconds."
    )
    log_stacks(error)
    return error


def log_stacks(error: object = "the stacks of all threads:") -> None:
    """Logs an error and the stacks of all threads."""
    lines = stacks().split("\n")
    log.error("\n".join(["%s"] * (1 + len(lines))), error, *lines)


def stacks() -> str:
    """The Python stack of every thread, by name, most recent call last.

    Without source lines: the sources may be on the disk that stalls."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    blocks = []
    for ident, frame in thread_frames().items():
        calls = [
            f'  File "{call.f_code.co_filename}", line {call.f_lineno}, in '
            f"{call.f_code.co_qualname}"
            for call in calls_of(frame)
        ]
        blocks.append("\n".join([f"Thread {names.get(ident, ident)}:", *reversed(calls)]))
    return "\n".join(blocks)


def thread_frames() -> dict[int, FrameType]:
    """The current frame of every thread, by its ident."""
    # In CPython 3.11 a garbage collection inside the call may deadlock:
    # github.com/python/cpython/issues/106883.
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def calls_of(frame: FrameType) -> list[FrameType]:
    """The frame and those that called it. traceback.walk_stack crashed CPython 3.11 once, perhaps
    as the thread ran meanwhile; here C walks without bytecode in between, so no other thread
    runs."""
    calls = deque[Any]()
    collects = gc.isenabled()
    gc.disable()
    try:
        # the outermost has None for a caller, which has no f_back
        with contextlib.suppress(AttributeError):
            calls.extend(itertools.accumulate(itertools.repeat("f_back"), getattr, initial=frame))
    finally:
        if collects:
            gc.enable()
    return [each for each in calls if each is not None]


T = TypeVar("T")
EXIT_WAIT_SECONDS = 1.0  # for all threads together
CHECK_SECONDS = 0.2  # between two calls of `check` while `next` waits


class _TooLate(Exception):  # noqa: N818
    """No item arrived in time. Not a TimeoutError, because a source may raise that itself."""


class _Shelf(Generic[T]):
    """The state shared by the thread and the Background, which the thread must not keep alive."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self.changed = threading.Condition()
        self.items = deque[tuple[T, int]]()
        self.limit = limit
        self.held = 0
        self.finished = self.closed = False
        self.error: BaseException | None = None

    def put(self, item: T, cost: int) -> bool:
        with self.changed:
            # An empty shelf takes any item, or one larger than the limit would wait forever.
            self.changed.wait_for(
                lambda: self.closed or not self.items or self.held + cost <= self.limit()
            )
            if not self.closed:
                self.items.append((item, cost))
                self.held += cost
                self.changed.notify_all()
            return not self.closed

    def get(self, seconds: float, check: Callable[[], bool]) -> T:
        left = seconds
        with self.changed:
            while not self.changed.wait_for(
                lambda: self.closed or self.items or self.finished, min(left, CHECK_SECONDS)
            ):
                left = seconds if check() else left - CHECK_SECONDS
                if left <= 0:
                    raise _TooLate(seconds)
            if self.items and not self.closed:
                item, cost = self.items.popleft()
                self.held -= cost
                self.changed.notify_all()
                return item
            error = self.error
            self.error = None
        if error is not None and not self.closed:
            # Our errors state everything; what the thread was doing is a screen of our own lines.
            if isinstance(error, InfeedError) and not keeps_all_frames():
                error.__traceback__ = None
            raise error
        raise StopIteration

    def finish(self, error: BaseException | None) -> None:
        with self.changed:
            self.finished = True
            self.error = error
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
            del item  # while the next is made
    except BaseException as e:
        error = e
    finally:
        # run a generator's `finally` in the thread that ran the rest of it
        if hasattr(source, "close"):
            source.close()  # pyright: ignore[reportAttributeAccessIssue]
        shelf.finish(error)


class Background(Generic[T], Iterator[T]):
    """Yields what `source` yields, in order, while a thread works ahead by items that cost at most
    `limit` in total.

    limit: a number, or a function that may account for what the source itself holds; called while
    an item waits. `next` raises the source's exceptions unchanged. After `close`, or once this
    object is dropped, `next` stops, and the thread ends as soon as the source returns control.

    stall_seconds: how long one `next` may wait. After that it logs the stacks of all threads,
    closes, and raises StallError. Time between calls does not count. OptionError unless
    above 0. check: called regularly while `next` waits. If true, the source is alive and the time
    limit starts over. `next` raises what it raises, and can then be called again."""

    def __init__(
        self,
        source: Iterable[T],
        *,
        limit: int | Callable[[], int],
        cost: Callable[[T], int] = lambda _: 1,
        name: str = "infeed",
        stall_seconds: float = math.inf,
        check: Callable[[], bool] = lambda: False,
    ) -> None:
        self._check = check
        self._stall_seconds = checked_stall_seconds(stall_seconds)
        self._shelf: _Shelf[T] = _Shelf(limit if callable(limit) else lambda: limit)
        arguments = (self._shelf, iter(source), cost)
        # A daemon: a thread in a stalled read cannot be interrupted, and must not keep the process
        # alive.
        self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._shelf.close).atexit = False
        _alive[self._thread] = self._shelf

    def __next__(self) -> T:
        try:
            return self._shelf.get(self._stall_seconds, self._check)
        except _TooLate as late:
            error = stalled(f"input from thread {self._thread.name!r}", *late.args)
        self.close()
        raise error

    def close(self) -> None:
        """Ends the iteration, also for a thread waiting in `next`. Returns immediately; may be
        called twice."""
        self._shelf.close()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread to end. Returns whether it has."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()


# By thread: one whose Background was dropped may still be inside a library.
_alive: "weakref.WeakKeyDictionary[threading.Thread, _Shelf[Any]]" = weakref.WeakKeyDictionary()


@atexit.register
def _close_all() -> None:
    # A thread inside TensorFlow or OpenCV can crash an interpreter that shuts down, so give threads
    # a moment to end.
    threads = dict(_alive)
    for shelf in threads.values():
        shelf.close()
    end = time.monotonic() + EXIT_WAIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
