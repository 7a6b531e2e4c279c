"""Log lines about requests to a bucket that take long: a network that is not there is otherwise
minutes of silence."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence

from pipeline.logs import logger

SILENT_SECONDS = (3.0, 15.0)  # until the first log line of a call, and between two of a process

log = logger("pipeline.storage")  # Python shows its warnings even if nobody has configured logging


@contextlib.contextmanager
def waiting(what: str, failures: Sequence[Exception] = ()) -> Iterator[None]:
    """Logs a warning if the block takes long. what: the words after "trying to". failures: so far;
    may grow."""
    waits = _waits()
    wait = (time.monotonic(), what, failures)
    waits[id(wait)] = wait
    try:
        yield
    finally:
        del waits[id(wait)]


@functools.cache
def _waits() -> dict[int, tuple[float, str, Sequence[Exception]]]:
    """Those of this process, oldest first; a thread watches them."""
    waits = dict[int, tuple[float, str, Sequence[Exception]]]()

    def watch() -> None:
        while True:
            time.sleep(0.25)
            for began, what, failures in list(waits.values())[:1]:
                if (seconds := time.monotonic() - began) > SILENT_SECONDS[0]:
                    why = first_line(failures[-1]) if failures else "no answer yet"
                    log.warning("still trying to %s after %.0f s: %s", what, seconds, why)
                    time.sleep(SILENT_SECONDS[1])

    threading.Thread(target=watch, name="bucket-waits", daemon=True).start()
    return waits


os.register_at_fork(after_in_child=_waits.cache_clear)


def first_line(error: BaseException) -> str:
    """The start of an error's text. Libraries wrap errors of connections, often twice, behind a
    long URL."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    text = str(getattr(error, "reason", "") or error).strip()
    return (text or type(error).__name__).split("\n", 1)[0][:300]
