"""The key that a record had when it was converted, where the record itself tells it.

verify proves a split's keys with it, and errors name a record by it. Values in, bytes out."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["key_of"]


def key_of(dataset: str, split: str, values: Mapping[str, Sequence[Any]]) -> bytes | None:
    """The key that the record had in its conversion; None where records do not hold it.

    Of ImageNet alone FORMAT.md says how a key is made."""
    if dataset != "imagenet2012" or not values.get("image/filename") or not values.get("image/class/synset"):
        return None
    folder = values["image/class/synset"][0] + b"/" if split == "train" else b""
    return split.encode() + b"/" + folder + values["image/filename"][0]
