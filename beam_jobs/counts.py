"""The workers' progress counts, for the launcher's progress bar: one small file per process, in a directory.

Only workers on the launcher's machine count: on others, the directory does not exist."""

import contextlib
import functools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

_WRITE_SECONDS = 0.25  # at least, between writes: file systems may be slow, and a bar must not delay the work


Counts = Counter[str]
"""The work done on a split since the launcher started: sources (scanned completely), scanned (records), records
(written) and bytes (of framed records)."""


class _ProcessCounts:
    """The counts of this process. Thread-safe. Ignores everything if the directory is "" or not on this machine."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory, f"{os.getpid()}.json")
        self._wanted = bool(directory) and self._path.parent.is_dir()
        self._lock, self._written = threading.Lock(), 0.0
        self._counts: dict[str, Counts] = {}

    def add(self, split: str, **numbers: int) -> None:
        """Adds to these of Counts. Takes a microsecond."""
        if not self._wanted:
            return
        with self._lock:
            self._counts.setdefault(split, Counter()).update(numbers)
            # The end of a source is always written: it may be the last count in this process.
            if (now := time.monotonic()) - self._written > _WRITE_SECONDS or "sources" in numbers:
                self._written, hidden = now, self._path.with_suffix(".tmp")
                with contextlib.suppress(OSError):  # the launcher has exited and removed its directory
                    hidden.write_text(json.dumps(self._counts))
                    hidden.replace(self._path)


counts_of = functools.cache(_ProcessCounts)


def read_counts(directory: str) -> Mapping[str, Counts]:
    """The counts of all processes by split, up to the last quarter of a second."""
    total: dict[str, Counts] = {}
    for path in Path(directory).glob("*.json"):
        with contextlib.suppress(ValueError):  # damaged: the bar works without it
            for split, counts in json.loads(path.read_bytes()).items():
                total.setdefault(split, Counter()).update(counts)
    return total
