"""Our loggers. What a log says of a name in raw data reaches terminals, so arguments are made printable."""

import logging

from pipeline.shards.errors import printable

__all__ = ["logger"]


def logger(name: str) -> logging.Logger:
    """The logger of this name. Of a record the text is ours and stays; str arguments become one printable line each."""
    found = logging.getLogger(name)
    found.addFilter(_make_printable)  # adds it once
    return found


def _make_printable(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(printable(each) if isinstance(each, str) else each for each in record.args)
    return True
