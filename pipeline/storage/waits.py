"""Says which request to a bucket is still waiting, and why.

Without a network, looking up a name, finding credentials and trying again take minutes, in silence."""

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence

from pipeline.errors import printable

__all__ = ["first_line", "waiting"]

FIRST_SECONDS, NEXT_SECONDS = 3.0, 15.0  # until the first line, and between two lines of a process
_CHECK_SECONDS = 0.25

log = logging.getLogger("pipeline.storage")  # Python shows warnings also where nobody has configured logging

_Wait = tuple[float, str, Sequence[Exception]]
_waits: dict[int, _Wait] = {}  # those of this process, oldest first


@contextlib.contextmanager
def waiting(what: str, failures: Sequence[Exception] = ()) -> Iterator[None]:
    """Logs a warning when the block takes long. what: the words after "trying to". failures: so far; may grow."""
    _watcher()
    wait = (time.monotonic(), what, failures)
    _waits[id(wait)] = wait
    try:
        yield
    finally:
        _waits.pop(id(wait), None)


def first_line(error: BaseException) -> str:
    """The start of an error's text, or its class if it has none. Libraries wrap errors of connections, often twice, and
    put a long URL in front of the reason."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    text = str(getattr(error, "reason", "") or error).strip()
    return (text or type(error).__name__).split("\n", 1)[0][:300]


@functools.cache
def _watcher() -> None:
    threading.Thread(target=_watch, name="infeed-waits", daemon=True).start()


def _watch() -> None:
    silent_until = 0.0
    while True:
        time.sleep(_CHECK_SECONDS)
        for began, what, failures in list(_waits.values())[:1]:
            now = time.monotonic()
            if now - began > FIRST_SECONDS and now > silent_until:
                why = first_line(failures[-1]) if failures else "no answer yet"
                log.warning("%s", printable(f"still trying to {what} after {now - began:.0f} s: {why}"))
                silent_until = now + NEXT_SECONDS


def _forget() -> None:
    _waits.clear()
    _watcher.cache_clear()


os.register_at_fork(after_in_child=_forget)  # a forked process has neither the thread nor the requests of its parent
