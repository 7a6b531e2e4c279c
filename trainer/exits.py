"""How the process ends: its exit codes, and the end of a process whose run has broken apart. Stdlib only.

A Python thread that is inside TensorFlow or XLA when the interpreter shuts down ends by an exception that C++ cannot
handle: SIGABRT, "FATAL: exception not rethrown". A process that may have such a thread skips that shutdown."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from pipeline.ctrl_c import EXIT_INTERRUPTED
from pipeline.errors import ShortInNotebooks

EXIT_USER_ERROR = 2  # any InfeedError
EXIT_HOST_FAILED = 3  # another host failed or died, so this one had to end

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again


class Ending(ShortInNotebooks):
    """The process was asked to end, and nothing is lost: the same command resumes, or starts over if it saves nothing.

    together: every host of the run raises it at the same step, so no host has to be told."""

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
    """By SIGINT, as Ctrl-C sends it. A program that catches it may make other calls."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, why: str, together: bool = False) -> None:
        super().__init__(why, together)
        atexit.unregister(_leave_if_uncaught)
        atexit.register(_leave_if_uncaught)


def ending(why: str, interrupted: bool, together: bool = False) -> Ending:
    """An Interrupted or a Preempted."""
    return (Interrupted if interrupted else Preempted)(why, together)


class ProcessEnd:
    """How a process ends. One instance serves the process; its methods are the functions of this module."""

    def __init__(self) -> None:
        self._last_words: Callable[[], None] | None = None
        self._threads_abandoned = False

    def break_apart(self, last_words: Callable[[], None], code: int = 1) -> None:
        """From now on the process can only end, and not as JAX would end it, which waits for processes that are gone
        and then aborts. `last_words` is called just before the end. code: for a program that does not call `end`."""
        if not self.is_apart():
            self._last_words = last_words
            atexit.register(self.end, code)

    def is_apart(self) -> bool:
        """Whether the run of this process has broken apart."""
        return self._last_words is not None

    def abandon_threads(self) -> None:
        """From now on `end` waits for no thread: some wait for something that will never happen."""
        self._threads_abandoned = True

    def leave_at_exit(self, error: BaseException, thread: threading.Thread) -> None:
        """From now on `end` waits for no thread. A program that ends in another way waits for this thread, unless the
        error is an Ending."""
        self.abandon_threads()
        if isinstance(error, Preempted):
            atexit.register(leave, EXIT_PREEMPTED)
        elif isinstance(error, Interrupted):
            atexit.register(lambda: None if _uncaught() else thread.join())
        else:
            atexit.register(thread.join)

    def end(self, code: int) -> NoReturn:
        """Ends the process with this exit code, even if its run has broken apart."""
        if self._last_words is not None:
            self._last_words()
        if self.is_apart() or self._threads_abandoned:
            leave(code)
        if code not in (EXIT_PREEMPTED, EXIT_INTERRUPTED):
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        _leave_in_order(code)


def leave(code: int) -> NoReturn:
    """Ends the process immediately: no other thread and no exit handler can delay it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_in_order(code: int) -> NoReturn:
    """Calls the exit handlers and ends the process without the rest of Python's shutdown, which can abort."""
    atexit._run_exitfuncs()
    leave(code)


def _uncaught() -> bool:
    """Whether a KeyboardInterrupt ends this program; asked at its end."""
    return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def _leave_if_uncaught() -> None:
    atexit.unregister(_leave_if_uncaught)
    if _uncaught():
        _leave_in_order(EXIT_INTERRUPTED)


_END = ProcessEnd()  # a process ends once
abandon_threads, break_apart, is_apart = _END.abandon_threads, _END.break_apart, _END.is_apart
leave_at_exit, end = _END.leave_at_exit, _END.end
