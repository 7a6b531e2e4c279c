"""Checks of arguments: numbers, names and patterns; and the hint for an unknown name.
Stdlib only."""

import difflib
import operator
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from pipeline.errors import OptionError

_ELSEWHERE = {
    "batch_size": "global_batch_size",
    "epochs": "max_epochs",
    "lr": "learning_rate",
    "steps": "max_steps",
}
"""Names that other libraries use -> ours."""
_HOLDS = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


def check_number(name: str, value: float | None, *, more: str = "", **bounds: float) -> None:
    """Raises OptionError for a number outside of the bounds, such as NaN.

    name: of the argument or flag. value: None, for one that was not given, is allowed. more: ends
    the message. bounds: any of at_least, above, at_most and below."""
    if value is not None and not all(
        _HOLDS[bound](value, limit) for bound, limit in bounds.items()
    ):
        allowed = " and ".join(
            f"{bound.replace('_', ' ')} {limit}" for bound, limit in bounds.items()
        )
        raise OptionError(f"{name}={value}{':' * name.startswith('--')} must be {allowed}{more}.")


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raises OptionError unless the value is one of those that are allowed. name: of the argument
    or flag."""
    if value not in (known := list(allowed)):
        raise OptionError(f"{name}={value!r} is not one of {', '.join(map(str, known))}.")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known name that is most like this one, or means the same elsewhere; [] if none does."""
    known = sorted(known)
    return [each for each in known if each == _ELSEWHERE.get(name)] or difflib.get_close_matches(
        name, known, 1, 0.5
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known name, then all known names."""
    known = sorted(known)
    hint = "".join(f" Did you mean {each!r}?" for each in nearest(name, known))
    return f"{hint} Known: {', '.join(known) or 'none'}."


def check_positive_int(name: str, value: object) -> None:
    """Raises OptionError unless `value` is an int above 0, or None. bool does not count as int."""
    if value is not None and (type(value) is not int or value <= 0):
        raise OptionError(f"{name}={value!r} must be an int above 0.")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(patterns: Iterable[str], names: Collection[str], what: str) -> None:
    """Raises OptionError for a pattern that matches none of the names. what: what has them."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError(
                f"the pattern {pattern!r} matches no {what}.{did_you_mean(pattern, names)}"
            )
