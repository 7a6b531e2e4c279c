"""Ctrl-C while a command is importing: exit code 130, no traceback. Stdlib only; imported before everything else."""

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130  # what shells report for a process ended by SIGINT


def leave(number: int, frame: FrameType | None) -> None:
    """The signal handler. It raises nothing: a library could mistake an exception for a failed import."""
    del number, frame
    os.write(2, b"interrupted; run the same command again\n")
    os._exit(EXIT_INTERRUPTED)


def leave_at_once() -> None:
    """Makes Ctrl-C exit immediately, unless SIGINT is ignored. For the first lines of a command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def as_usual() -> bool:
    """Makes Ctrl-C raise KeyboardInterrupt again. Returns whether leave_at_once was in effect."""
    left = signal.getsignal(signal.SIGINT) is leave
    if left:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return left
