"""Turns flat keys with slashes into nested dicts, for batches and specs with `nested=True`."""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import OptionError

__all__ = ["nested"]


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"image/class/label": x, "_mask": y} as {"image": {"class": {"label": x}}, "_mask": y}.

    Raises OptionError if a key is both a value and the parent of another key."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        folders = key.split("/")
        for depth in range(1, len(folders)):
            if (folder := "/".join(folders[:depth])) in flat:
                raise OptionError(
                    f"a nested batch cannot have both {folder!r}, a value, and {key!r} inside it. Leave one out of "
                    f"keys, or set the value under another name in an op (into='{folder}/value')."
                )
        at = tree
        for folder in folders[:-1]:
            at = at.setdefault(folder, {})
        at[folders[-1]] = value
    return tree
