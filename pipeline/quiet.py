"""Silence on stderr, of whatever writes there: libraries and child processes that take no option against it."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["quiet_libraries", "quiet_stderr"]


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drops what this process, and those that it starts, write to stderr while the block runs."""
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """The same, but what Python prints is shown: another thread may just then say why the process ends."""
    with os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace") as heard:
        shown = _Shown(heard)
        with quiet_stderr(), contextlib.redirect_stderr(shown):
            try:
                yield
            finally:
                shown.stream = None


class _Shown(io.TextIOBase):
    """A stderr for a while. Loggers that a library makes meanwhile keep it: later it is whatever sys.stderr is then."""

    def __init__(self, stream: TextIO) -> None:
        self.stream: TextIO | None = stream

    def write(self, text: str) -> int:
        return (self.stream or sys.stderr).write(text)

    def flush(self) -> None:
        (self.stream or sys.stderr).flush()
