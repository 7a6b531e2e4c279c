"""How a command ends before its end: by Ctrl-C, or because nobody reads what it prints.

Depends only on the standard library. It is imported before everything else, so that Ctrl-C while a
command imports ends it with exit code 130, without a traceback."""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from types import FrameType

EXIT_INTERRUPTED = 130  # what shells report for a process ended by SIGINT
EXIT_NOT_READ = 141  # what shells report for a process ended by SIGPIPE


def on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """The signal handler. It raises nothing: a library could mistake an exception for a failed
    import."""
    del number, frame
    os.write(2, b"interrupted; run the same command again\n")
    os._exit(EXIT_INTERRUPTED)


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
    """The block ends in SystemExit(EXIT_NOT_READ), without a traceback, if nobody reads stdout, as
    after `| head`.

    What stdout cannot encode is printed as "?": under LC_ALL=C, that is all but ASCII."""
    # not a text file, or its descriptor was replaced
    with contextlib.suppress(AttributeError, OSError):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # or the interpreter would, where nothing can catch the error
    except BrokenPipeError:
        if not _is_closed(sys.stdout.fileno()):
            raise  # another pipe is meant
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what stdout still holds
        os.close(nowhere)
        sys.exit(EXIT_NOT_READ)


def _is_closed(descriptor: int) -> bool:
    """Whether it is a pipe or socket without a reader."""
    state = select.poll()
    state.register(descriptor, 0)  # errors are always reported
    return bool(state.poll(0))
