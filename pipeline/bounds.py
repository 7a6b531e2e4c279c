"""Bounds of arguments and options: each check raises OptionError for a value that is not allowed. Stdlib only."""

import operator
from collections.abc import Iterable

from pipeline.errors import OptionError

_HOLDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}


def check_number(name: str, value: float | None, *, more: str = "", **bounds: float) -> None:
    """Raises OptionError for a number outside of the bounds, such as NaN.
    name: of the argument or flag. value: None, for one that was not given, is allowed. more: ends the message. bounds:
    any of at_least, above, at_most and below."""
    if value is not None and not all(_HOLDS[bound](value, limit) for bound, limit in bounds.items()):
        allowed = " and ".join(f"{bound.replace('_', ' ')} {limit}" for bound, limit in bounds.items())
        raise OptionError(f"{name}={value}{':' * name.startswith('--')} must be {allowed}{more}.")


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raises OptionError unless the value is one of those that are allowed. name: of the argument or flag."""
    if value not in (known := list(allowed)):
        raise OptionError(f"{name}={value!r} is not one of {', '.join(map(str, known))}.")
