"""The names of a model's arrays in a warm start: parameters first, then the others."""

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["model_names"]

T = TypeVar("T")


def model_names(params: Mapping[str, T], extra: Mapping[str, T]) -> dict[str, T]:
    """Both by their own names; where a parameter has the same name, the other is called "extra/NAME"."""
    return {**params, **{f"extra/{name}" if name in params else name: value for name, value in extra.items()}}
