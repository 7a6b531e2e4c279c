"""Our log lines: switching them on, and loggers that escape control characters, because lines
contain names from raw data and reach terminals. And silence for libraries and child processes that
have no option for it."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from pipeline.errors import printable

_OURS = ("trainer", "pipeline")
_PROBE = logging.makeLogRecord({"name": "name", "levelname": "LEVEL", "msg": "message"})


def show(level: int = logging.INFO) -> None:
    """Shows infeed's log lines on stderr, each once, however often this is called. For programs and
    notebooks.

    A program's own handlers are kept and get the lines; one with logging's default format becomes
    as plain as ours. Orbax's repeated reports of a failed save are switched off: the call that
    saves raises the error."""
    # nothing if there are handlers
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        if handler.format(_PROBE) == logging.Formatter(logging.BASIC_FORMAT).format(_PROBE):
            # absl's, set when Orbax was imported
            handler.setFormatter(logging.Formatter("%(message)s"))
    for ours in _OURS:
        logging.getLogger(ours).setLevel(level)
    for orbax in ("absl", "asyncio"):  # it logs a failure several times with stacks, then raises it
        logging.getLogger(orbax).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Drops infeed's warnings and lesser lines inside the block: for a command that says itself
    what they say."""
    levels = {ours: ours.level for ours in map(logging.getLogger, _OURS)}
    for ours in levels:
        ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for ours, level in levels.items():
            ours.setLevel(level)


def logger(name: str) -> logging.Logger:
    """The logger of this name, which turns each str argument into one printable line."""
    log = logging.getLogger(name)
    log.addFilter(_make_printable)  # has no effect the second time
    return log


def _make_printable(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(
            printable(each) if isinstance(each, str) else each for each in record.args
        )
    return True


log = logger("pipeline")


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
