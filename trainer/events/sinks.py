"""Where events and metrics are written: one growing file on a local disk, a series of objects in a bucket.

Records stay in memory until they are published. A fence is called just before: it raises if the work directory has
another owner by now, and then none of them appears."""

import contextlib
import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join

__all__ = ["Fence", "FileSink", "PartsSink", "Sink", "open_sink", "unfenced"]

PART_SECONDS = 30.0
HELD_BYTES = 1 << 16

Fence = Callable[[], None]


def unfenced() -> None:
    """The fence of files that any process may write."""


class FileSink:
    """Appends to a new file, or in mode "ab" to one that may exist and that other processes may append to as well.

    Except on a network disk, records of several processes are never interleaved."""

    def __init__(
        self, directory: str, name: str, head: bytes, mode: Literal["xb", "ab"] = "xb", fence: Fence = unfenced
    ) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = Path(directory, name).open(mode, buffering=0)  # noqa: SIM115 (close closes it)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_SH)  # see MetricsFile
        self._records, self._fence = bytearray(head), fence

    def write(self, record: bytes) -> None:
        """Appends a framed record."""
        self._records += record
        if len(self._records) >= HELD_BYTES:
            self.flush()

    def flush(self, now: bool = False) -> None:
        """Makes the records visible to readers."""
        del now
        if self._records:
            self._fence()
        while self._records:  # one write, unless the disk is full
            del self._records[: self._file.write(self._records)]

    def close(self) -> None:
        """Makes all records visible to readers."""
        try:
            if not self._file.closed:
                self.flush()
        finally:
            self._file.close()


class PartsSink:
    """Writes objects `<name>.000000`, ..., as objects cannot be appended to. Each starts with `head` and is a complete
    file; readers take them in the order of their names. `number`: of the first part. Never replaces a part.

    A part appears at most every 30 s, unless flushed `now`: 2,880 per day of training."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        name: str,
        head: bytes,
        clock: Callable[[], float] = time.monotonic,
        number: int = 0,
        fence: Fence = unfenced,
    ) -> None:
        self._storage, self._path, self._head, self._clock = storage, join(directory, name), head, clock
        self._records, self._number, self._published_at = bytearray(), number, clock()
        self._fence = fence

    def write(self, record: bytes) -> None:
        """Appends a framed record."""
        self._records += record

    def flush(self, now: bool = False) -> None:
        """Makes the records visible to readers, which costs a request: only at intervals, unless `now`."""
        if not self._records or not (now or self._clock() - self._published_at >= PART_SECONDS):
            return
        self._fence()
        # Two concurrent evaluations skip the numbers that the other has taken.
        while not self._storage.create(f"{self._path}.{self._number:06d}", bytes(self._head + self._records)):
            self._number += 1
        self._records.clear()
        self._number += 1
        self._published_at = self._clock()

    def close(self) -> None:
        """Makes all records visible to readers."""
        self.flush(now=True)


Sink = FileSink | PartsSink
"""Takes framed records, in order."""


def open_sink(directory: str, name: str, head: bytes, fence: Fence = unfenced) -> Sink:
    """The sink for events in this directory; every file starts with the record `head`."""
    if is_remote(directory):
        return PartsSink(open_storage(directory), directory, name, head, fence=fence)
    return FileSink(directory, name, head, fence=fence)
