"""Our log lines: switching them on, and loggers that escape control characters, because lines
contain names from raw data and reach terminals."""

import contextlib
import logging
import sys
from collections.abc import Iterator

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
    """Drops infeed's warnings and lesser lines inside the block: for a command that reports the
    same itself."""
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
