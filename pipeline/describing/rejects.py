"""The inputs that a conversion rejected, counted by reason."""

import json
import re
from collections import Counter
from dataclasses import dataclass

from pipeline.shards.naming import rejects_file
from pipeline.storage.storage import Storage, join

__all__ = ["Rejects", "read_rejects"]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Rejects:
    """Reason -> how many inputs, the most frequent first, and the key of one of them. Numbers in reasons are "N"."""

    counts: list[tuple[str, int]]
    example: dict[str, str]


def read_rejects(storage: Storage, directory: str, split: str) -> Rejects | None:
    """The rejects of a split; None if the dataset has no such list. Lines that are damaged count as such."""
    path = join(directory, rejects_file(split))
    if not storage.exists(path):
        return None
    counts, example = Counter[str](), dict[str, str]()
    for line in storage.read(path).splitlines():
        try:
            rejected = json.loads(line)
            reason, key = _NUMBER.sub("N", rejected["error"]), rejected["key"]
        except (ValueError, KeyError, TypeError):
            reason, key = "(a damaged line)", ""
        counts[reason] += 1
        example.setdefault(reason, key)
    return Rejects(counts.most_common(), example)
