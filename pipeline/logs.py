"""Our log lines: switching them on, and loggers that escape control characters, because lines contain names from raw
data and reach terminals."""

import logging
import sys

from pipeline.errors import printable

__all__ = ["logger", "show"]

_PROBE = logging.makeLogRecord({"name": "name", "levelname": "LEVEL", "msg": "message"})


def show(level: int = logging.INFO) -> None:
    """Shows infeed's log lines on stderr, each once, however often this is called. For programs and notebooks.

    A program's own handlers are kept and get the lines; one with logging's default format becomes as plain as ours.
    Orbax's repeated reports of a failed save are switched off: the call that saves raises the error."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)  # nothing if there are handlers
    for handler in logging.getLogger().handlers:
        if handler.format(_PROBE) == logging.Formatter(logging.BASIC_FORMAT).format(_PROBE):
            handler.setFormatter(logging.Formatter("%(message)s"))  # absl's, set when Orbax was imported
    for ours in ("trainer", "pipeline"):
        logging.getLogger(ours).setLevel(level)
    for orbax in ("absl", "asyncio"):  # it logs a failure several times with stacks, then raises it
        logging.getLogger(orbax).setLevel(logging.CRITICAL)


def logger(name: str) -> logging.Logger:
    """The logger of this name, which turns each str argument into one printable line."""
    found = logging.getLogger(name)
    found.addFilter(_make_printable)  # has no effect the second time
    return found


def _make_printable(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(printable(each) if isinstance(each, str) else each for each in record.args)
    return True
