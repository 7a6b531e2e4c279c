"""How the process ends: its exit codes, the exceptions of a process that was asked to end, and the end itself.

A Python thread that is inside TensorFlow or XLA when the interpreter shuts down ends by an exception that C++ cannot
handle: SIGABRT, "FATAL: exception not rethrown". A command skips that shutdown. Stdlib only."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from pipeline.commands.program import EXIT_INTERRUPTED
from pipeline.errors import ShortInNotebooks

EXIT_USER_ERROR = 2  # any InfeedError
EXIT_HOST_FAILED = 3  # another host failed, so this one had to end; or something was stuck
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again
Check = Callable[[], None]

exit_code = 1
"""Of a process that can only end because its run has failed; `end` sets it."""


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


def ending(why: str, interrupted: bool, together: bool = False) -> Ending:
    """An Interrupted or a Preempted."""
    return (Interrupted if interrupted else Preempted)(why, together)


def leave(code: int) -> NoReturn:
    """Ends the process immediately: no other thread and no exit handler can delay it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end(code: int) -> NoReturn:
    """Ends a command: calls the exit handlers. After an error it waits for no thread: some wait for something that will
    never happen, such as those of a save that failed."""
    global exit_code
    exit_code = code
    if code == 0:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    leave(code)
