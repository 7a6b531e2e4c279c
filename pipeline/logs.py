"""Loggers that escape control characters: log lines contain names from raw data and reach terminals."""

import logging

from pipeline.errors import printable

__all__ = ["logger"]


def logger(name: str) -> logging.Logger:
    """The logger of this name, which turns each str argument into one printable line."""
    found = logging.getLogger(name)
    found.addFilter(_make_printable)  # has no effect the second time
    return found


def _make_printable(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(printable(each) if isinstance(each, str) else each for each in record.args)
    return True
