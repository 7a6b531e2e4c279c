"""The key that a record had when it was converted, if it can be derived from the record itself; the name of its file.

verify checks a split's keys with it, and errors name records by it. Values in, bytes out."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["FILE_NAME_KEYS", "key_of"]

FILE_NAME_KEYS = ("image/filename", "file_name")
"""The features that hold the name of an image's file: of infeed's schemas, and of TFDS."""


def key_of(dataset: str, split: str, values: Mapping[str, Sequence[Any]]) -> bytes | None:
    """The key of a record in its conversion; None if it cannot be derived from the record.

    FORMAT.md defines this for ImageNet only."""
    if dataset != "imagenet2012" or not values.get("image/filename") or not values.get("image/class/synset"):
        return None
    folder = values["image/class/synset"][0] + b"/" if split == "train" else b""
    return split.encode() + b"/" + folder + values["image/filename"][0]
