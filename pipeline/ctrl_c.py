"""Ctrl-C while a command still imports: exit code 130 instead of a traceback. Stdlib only; imported before the rest."""

import os
import signal
from types import FrameType

__all__ = ["EXIT_INTERRUPTED", "as_usual", "leave", "leave_at_once"]

EXIT_INTERRUPTED = 130  # as shells report a process that SIGINT ended


def leave(number: int, frame: FrameType | None) -> None:
    """The signal handler. An exception could end in a library that takes it for a failed import."""
    del number, frame
    os._exit(EXIT_INTERRUPTED)


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process; for the first lines of a command. Nothing where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def as_usual() -> bool:
    """From now on Ctrl-C raises KeyboardInterrupt again, if leave_at_once was called; whether it was."""
    left = signal.getsignal(signal.SIGINT) is leave
    if left:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return left
