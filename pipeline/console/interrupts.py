"""How a command ends: its exit code, Ctrl-C, and output that nobody reads or no disk has room for.

Depends only on the standard library. It is imported before everything else, so that Ctrl-C while a
command imports ends it with exit code 130, without a traceback."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from enum import IntEnum
from types import FrameType


class Exit(IntEnum):
    """The exit codes of all commands. docs/production.md says what to do about each, and --json
    gives their names."""

    DONE = 0
    BAD_DATA = 1  # the command did its work and found, left out or foresees bad data
    ERROR = 2  # any InfeedError
    HOST_FAILED = 3  # another host failed, so this one had to end; or something was stuck
    BUG = 70  # EX_SOFTWARE of sysexits.h: an exception that nobody expected
    PREEMPTED = 75  # EX_TEMPFAIL: nothing is wrong, run the same command again
    INTERRUPTED = 130  # what shells report for a process ended by SIGINT
    NOT_READ = 141  # what shells report for a process ended by SIGPIPE


def on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """The signal handler. It raises nothing: a library could mistake an exception for a failed
    import."""
    del number, frame
    os.write(2, b"interrupted; run the same command again\n")
    os._exit(Exit.INTERRUPTED)


def ctrl_c_exits() -> None:
    """Makes Ctrl-C exit immediately, unless SIGINT is ignored. For the first lines of a command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, on_ctrl_c)


def ctrl_c_raises() -> bool:
    """Makes Ctrl-C raise KeyboardInterrupt again. Returns whether ctrl_c_exits was in effect."""
    left = signal.getsignal(signal.SIGINT) is on_ctrl_c
    if left:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return left


@contextlib.contextmanager
def ends_when_not_read() -> Iterator[None]:
    """The block ends in a SystemExit, without a traceback, if nobody reads stdout, as after
    `| head`, or if its disk is full.

    What stdout cannot encode is printed as "?": under LC_ALL=C, that is all but ASCII."""
    # not a text file, or its descriptor was replaced
    with contextlib.suppress(AttributeError, OSError):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        try:
            yield
        finally:
            if sys.stdout:  # or the interpreter would, where nothing can catch the error
                sys.stdout.flush()
    except OSError as error:
        if not error.errno or error.filename or not _is_lost():
            raise  # another pipe or file is meant, or it is a StorageError
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what stdout still holds
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            sys.exit(Exit.NOT_READ)
        print(f"error: cannot write to stdout: {error.strerror}.", file=sys.stderr)
        sys.exit(Exit.ERROR)


def _is_lost() -> bool:
    """Whether stdout takes nothing more: its reader is gone, or its disk is full."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return True
    return False
