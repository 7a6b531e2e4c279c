"""How far the workers of a running conversion are, for its launcher's bar: a small file a process, in a directory.

Only for workers on the launcher's machine: on another the directory does not exist, and nothing is counted."""

import contextlib
import functools
import json
import operator
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from pipeline.shards.errors import ConversionError
from pipeline.shards.typed_json import Count, JsonFile

__all__ = ["Counts", "counts_of", "read_counts"]

_WRITE_SECONDS = 0.25  # at the soonest: a file system may be slow, and a bar is no reason to wait


@dataclass(frozen=True)
class Counts:
    """What has been done of a split since the launcher began. bytes: of framed records."""

    sources: Count = 0  # scanned to their ends
    scanned: Count = 0  # records
    records: Count = 0  # written
    bytes: Count = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.add, astuple(self), astuple(other)))


class _Process:
    """The counts of this process, which its threads add to."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory, f"{os.getpid()}.json")
        self._wanted = bool(directory) and self._path.parent.is_dir()
        self._lock, self._written = threading.Lock(), 0.0
        self._counts: dict[str, Counter[str]] = {}

    def add(self, split: str, **numbers: int) -> None:
        """Adds to the fields of Counts. Costs a microsecond."""
        if not self._wanted:
            return
        with self._lock:
            self._counts.setdefault(split, Counter()).update(numbers)
            # The end of a source is told for certain: no other count may follow in this process.
            if (now := time.monotonic()) - self._written > _WRITE_SECONDS or "sources" in numbers:
                self._written = now
                self._write()

    def _write(self) -> None:
        hidden = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # the launcher has gone, and its directory with it
            hidden.write_text(json.dumps(self._counts))
            hidden.replace(self._path)


@functools.cache
def counts_of(directory: str) -> _Process:
    """Where this process counts; for "", and for a directory that is not on this machine, nowhere."""
    return _Process(directory)


def read_counts(directory: str) -> Mapping[str, Counts]:
    """By split, what all processes have counted by now, but for their last quarter of a second."""
    total: dict[str, Counts] = {}
    for path in Path(directory).glob("*.json"):
        file = JsonFile(str(path), ConversionError, "It is temporary: the bar goes on without it.")
        with contextlib.suppress(ConversionError):
            for split, counts in file.read(path.read_bytes(), dict[str, Counts]).items():
                total[split] = total.get(split, Counts()) + counts
    return total
