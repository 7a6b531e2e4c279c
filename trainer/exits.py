"""How the process ends: its exit codes, and the end of a process whose run has broken apart. Stdlib only.

A Python thread that is inside TensorFlow or XLA when the interpreter goes down is ended in there, by an exception that
C++ cannot pass on: SIGABRT, "FATAL: exception not rethrown". So a process that may have one ends without that."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from pipeline.ctrl_c import EXIT_INTERRUPTED

__all__ = [
    "EXIT_HOST_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_PREEMPTED",
    "EXIT_USER_ERROR",
    "Ending",
    "Interrupted",
    "Preempted",
    "abandon_threads",
    "break_apart",
    "end",
    "ending",
    "is_apart",
    "leave",
    "leave_at_exit",
]

EXIT_USER_ERROR = 2  # any InfeedError
EXIT_HOST_FAILED = 3  # another host failed or died, so that this one had to end

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again

_last_words: Callable[[], None] | None = None
_threads_abandoned = False


class Ending(BaseException):
    """The process was asked to end, and what it did is saved: the same command goes on from there.

    together: every host of the run raises it at the same step, so none has to be told."""

    exit_code: int

    def __init__(self, why: str, together: bool = False) -> None:
        super().__init__(self.exit_code)
        self.why, self.together = why, together

    def __str__(self) -> str:
        return self.why


class Preempted(Ending, SystemExit):
    """By SIGTERM. As a SystemExit it passes `except Exception`, and ends a program that does not catch it with
    EXIT_PREEMPTED and no traceback."""

    exit_code = EXIT_PREEMPTED


class Interrupted(Ending, KeyboardInterrupt):
    """By SIGINT, as Ctrl-C sends it. A program that catches it may go on with other calls."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, why: str, together: bool = False) -> None:
        super().__init__(why, together)
        atexit.unregister(_leave_if_uncaught)
        atexit.register(_leave_if_uncaught)


def ending(why: str, interrupted: bool, together: bool = False) -> Ending:
    """The exception for it."""
    return (Interrupted if interrupted else Preempted)(why, together)


def break_apart(last_words: Callable[[], None], code: int = 1) -> None:
    """From now on this process can only end, and not JAX's way, which waits for processes that are gone and then
    aborts this one. `last_words` are called just before. code: of a program that does not call `end`."""
    global _last_words
    if _last_words is None:
        _last_words = last_words
        atexit.register(end, code)


def is_apart() -> bool:
    """Whether the run of this process has broken apart."""
    return _last_words is not None


def abandon_threads() -> None:
    """From now on `end` waits for no thread: some wait for what will never come."""
    global _threads_abandoned
    _threads_abandoned = True


def leave_at_exit(error: BaseException, thread: threading.Thread) -> None:
    """`end` waits for no thread from now on. The end of any other program waits for this one, but for an Ending."""
    abandon_threads()
    if isinstance(error, Preempted):
        atexit.register(leave, EXIT_PREEMPTED)
    elif isinstance(error, Interrupted):
        atexit.register(lambda: None if _uncaught() else thread.join())
    else:
        atexit.register(thread.join)


def end(code: int) -> NoReturn:
    """Ends the process with this exit code, also if its run has broken apart."""
    if _last_words is not None:
        _last_words()
    if _last_words is not None or _threads_abandoned:
        leave(code)
    if code not in (EXIT_PREEMPTED, EXIT_INTERRUPTED):
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    _leave_in_order(code)


def leave(code: int) -> NoReturn:
    """Ends the process at once: no other thread and no exit handler can hold it up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_in_order(code: int) -> NoReturn:
    """Calls what is to be called at the end of the process, and ends it without the rest, which can abort."""
    atexit._run_exitfuncs()
    leave(code)


def _uncaught() -> bool:
    """Whether a KeyboardInterrupt ends this program; asked at its end."""
    return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def _leave_if_uncaught() -> None:
    atexit.unregister(_leave_if_uncaught)
    if _uncaught():
        _leave_in_order(EXIT_INTERRUPTED)
