"""The inputs that a conversion rejected, counted by reason."""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace

from pipeline.shards.naming import rejects_file
from pipeline.storage.storage import Storage, join

__all__ = ["Reason", "Rejects", "read_rejects"]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Reason:
    """Why inputs were rejected. text, key: of the first of them. several: whether others differ, in their numbers."""

    text: str
    key: str
    several: bool = False


@dataclass(frozen=True)
class Rejects:
    """(reason, how many inputs), the most frequent first; reasons that differ only in their numbers are one."""

    counts: list[tuple[Reason, int]]


def read_rejects(storage: Storage, directory: str, split: str) -> Rejects | None:
    """The rejects of a split; None if the dataset has no such list. Lines that are damaged count as such."""
    path = join(directory, rejects_file(split))
    if not storage.exists(path):
        return None
    counts, reasons = Counter[str](), dict[str, Reason]()
    for line in storage.read(path).splitlines():
        try:
            rejected = json.loads(line)
            text, key = rejected["error"], rejected["key"]
            kind = _NUMBER.sub("N", text)
        except (ValueError, KeyError, TypeError):
            kind, text, key = "", "(a damaged line)", ""
        counts[kind] += 1
        first = reasons.setdefault(kind, Reason(text, key))
        if text != first.text and not first.several:
            reasons[kind] = replace(first, several=True)
    return Rejects([(reasons[kind], count) for kind, count in counts.most_common()])
