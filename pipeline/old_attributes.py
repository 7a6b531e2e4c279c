"""What programs written before `info` need until 0.4: its fields as attributes of ours, and theirs as an `info`.

Every use warns. Stdlib only."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

_NOT_THERE = object()


class OldAttributes:
    """A class whose attributes of before are now the fields of its `info`: reading one warns."""

    info: Any

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "info" or name not in {field.name for field in fields(self.info)}:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            what = f"{type(self).__name__}.{name} goes with version 0.4: use .info.{name}."
            warnings.warn(what, DeprecationWarning, stacklevel=2)
            return getattr(self.info, name)


def described(given: Any, description: type) -> Callable[[], Any] | None:
    """A function that makes the description of an object from its attributes, with a warning that names its class.

    None if it has an `info` of its own, or passes on that of what it wraps and has none of the fields as attributes; or
    if it has neither an `info` nor the fields that are needed."""
    if inspect.getattr_static(given, "info", None) is not None:
        return None
    passes_on = hasattr(given, "info")
    found = inspect.getattr_static if passes_on else getattr
    names = [field.name for field in fields(description) if found(given, field.name, _NOT_THERE) is not _NOT_THERE]
    needed = {f.name for f in fields(description) if f.default is MISSING and f.default_factory is MISSING}
    if not names or not (passes_on or needed.issubset(names)):
        return None
    kind = description.__name__
    warnings.warn(
        f"{type(given).__name__} has the attributes {', '.join(names)}. From version 0.4 on, an attribute `info` must "
        f"state them: self.info = {kind}({names[0]}=..., ...), from {description.__module__}.",
        DeprecationWarning,
        stacklevel=3,
    )

    def describe() -> Any:
        values = {name: getattr(given, name) for name in names}
        return replace(given.info, **values) if passes_on else description(**values)

    return describe
