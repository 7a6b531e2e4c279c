"""Patterns such as "backbone/*", which flags give for the names of arrays. Stdlib only."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from pipeline.errors import OptionError, did_you_mean


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(patterns: Iterable[str], names: Collection[str], what: str) -> None:
    """Raises OptionError for a pattern that matches none of the names. what: they are of."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError(f"the pattern {pattern!r} matches no {what}.{did_you_mean(pattern, names)}")
