"""How the process ends: its exit codes, and the end of a process whose run has broken apart. Stdlib only."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn

__all__ = ["EXIT_HOST_FAILED", "EXIT_USER_ERROR", "abandon_threads", "break_apart", "end", "is_apart", "leave"]

EXIT_USER_ERROR = 2  # any InfeedError
EXIT_HOST_FAILED = 3  # another host failed, and this one was stuck in a collective with it

_last_words: Callable[[], None] | None = None
_threads_abandoned = False


def break_apart(last_words: Callable[[], None]) -> None:
    """From now on this process can only end, and not JAX's way, which waits for processes that are gone and then
    aborts this one. `last_words` are called just before."""
    global _last_words
    if _last_words is None:
        _last_words = last_words
        atexit.register(end, 1)  # for programs that do not call `end`


def is_apart() -> bool:
    """Whether the run of this process has broken apart."""
    return _last_words is not None


def abandon_threads() -> None:
    """From now on `end` waits for no thread: some wait for what will never come."""
    global _threads_abandoned
    _threads_abandoned = True


def end(code: int) -> NoReturn:
    """Ends the process with this exit code, also if its run has broken apart."""
    if _last_words is not None:
        _last_words()
    if _last_words is not None or _threads_abandoned:
        leave(code)
    sys.exit(code)


def leave(code: int) -> NoReturn:
    """Ends the process at once: no other thread and no exit handler can hold it up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
