"""Parses the command line of a recipe into its dataclasses. Needs no JAX."""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tyro

from pipeline.shards.errors import InfeedError

__all__ = ["parsed"]


def parsed(flags: type, options: Sequence[str], program: str, description: str) -> Any:
    """An instance of `flags` with the values of the options.

    Raises InfeedError for a value that a dataclass refuses; SystemExit, after tyro's help or error on stderr, for
    --help and for unknown or malformed options."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(tyro.conf.OmitArgPrefixes[flags], args=options, prog=program, description=description)
    except SystemExit as left:
        for cause in _causes(left):
            if isinstance(cause, InfeedError):
                raise cause from None  # tyro would print it in a box, folded into several lines
        print(said.getvalue(), file=sys.stderr, end="")
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
