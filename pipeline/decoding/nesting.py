"""Flat keys with slashes as nested dicts: what `nested=True` makes of a batch and its spec."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pipeline.shards.errors import OptionError

__all__ = ["nested"]

T = TypeVar("T")


def nested(flat: Mapping[str, T]) -> dict[str, Any]:
    """{"image/class/label": x, "_mask": y} as {"image": {"class": {"label": x}}, "_mask": y}.

    Raises OptionError where a key is a value and the folder of another as well."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        folders = key.split("/")
        for depth in range(1, len(folders)):
            if (folder := "/".join(folders[:depth])) in flat:
                raise OptionError(
                    f"a nested batch cannot have both {folder!r}, a value, and {key!r} inside of it. Leave one out of "
                    f"keys, or let an op set the value under another name (into='{folder}/value')."
                )
        at = tree
        for folder in folders[:-1]:
            at = at.setdefault(folder, {})
        at[folders[-1]] = value
    return tree
