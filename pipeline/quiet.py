"""Silence for libraries and child processes that have no option for it."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drops what this process and its children write to stderr inside the block."""
    sys.stderr.flush()
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
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
    """The same, but shows what Python prints: another thread may be reporting why the process
    ends."""
    with os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace") as stderr:
        shown = _Shown(stderr)
        with quiet_stderr(), contextlib.redirect_stderr(shown):
            try:
                yield
            finally:
                shown.stream = None


class _Shown(io.TextIOBase):
    """A temporary stderr. Loggers created meanwhile keep it, so afterwards it forwards to the
    current sys.stderr."""

    def __init__(self, stream: TextIO) -> None:
        self.stream: TextIO | None = stream

    def write(self, text: str) -> int:
        return (self.stream or sys.stderr).write(text)

    def flush(self) -> None:
        (self.stream or sys.stderr).flush()
