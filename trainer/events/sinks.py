"""Where events and metrics go: one file that grows on a local disk, a row of whole objects in a bucket.

Records wait in memory until they are published, so that a fence can be asked just before: it raises where the work
directory has another owner by now, and then nothing of them appears."""

import contextlib
import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import Storage, join

__all__ = ["Fence", "FileSink", "PartsSink", "Sink", "open_sink", "unfenced"]

PART_SECONDS = 30.0
HELD_BYTES = 1 << 16

Fence = Callable[[], None]


def unfenced() -> None:
    """The fence of what everybody may write."""


class Sink(Protocol):
    """Takes framed records, in order."""

    def write(self, record: bytes) -> None:
        """Appends a record."""
        ...

    def flush(self, now: bool = False) -> None:
        """Lets readers see the records so far; where that costs, not at once, unless it has to be `now`."""
        ...

    def close(self) -> None:
        """Lets readers see all."""
        ...


class FileSink:
    """One file that grows: a new one, or in mode "ab" one that may be there, and that others may append to as well.

    Records appear in whole; of two processes none cuts another's, but on a network disk."""

    def __init__(
        self, directory: str, name: str, head: bytes, mode: Literal["xb", "ab"] = "xb", fence: Fence = unfenced
    ) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = Path(directory, name).open(mode, buffering=0)  # noqa: SIM115 (close closes it)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_SH)  # see MetricsFile
        self._records, self._fence = bytearray(head), fence

    def write(self, record: bytes) -> None:
        """See Sink."""
        self._records += record
        if len(self._records) >= HELD_BYTES:
            self.flush()

    def flush(self, now: bool = False) -> None:
        """See Sink. Always at once."""
        del now
        if self._records:
            self._fence()
        while self._records:  # one write, unless the disk is full
            del self._records[: self._file.write(self._records)]

    def close(self) -> None:
        """See Sink."""
        try:
            if not self._file.closed:
                self.flush()
        finally:
            self._file.close()


class PartsSink:
    """Objects cannot be appended to, so the records come as parts `<name>.000000`, ...: each begins with `head` and is
    a file of its own. Readers take them in the order of their names. `number` is that of the first. Nobody's parts are
    ever replaced.

    A part appears at most every 30 s, and where it is asked for `now`: a day of training is 2,880 of them."""

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
        """See Sink."""
        self._records += record

    def flush(self, now: bool = False) -> None:
        """See Sink."""
        if not self._records or not (now or self._clock() - self._published_at >= PART_SECONDS):
            return
        self._fence()
        # Of two evaluations at the same time, each finds the numbers that the other has taken.
        while not self._storage.create(f"{self._path}.{self._number:06d}", bytes(self._head + self._records)):
            self._number += 1
        self._records.clear()
        self._number += 1
        self._published_at = self._clock()

    def close(self) -> None:
        """See Sink."""
        self.flush(now=True)


def open_sink(directory: str, name: str, head: bytes, fence: Fence = unfenced) -> Sink:
    """The sink for events in this directory; `head` is the record that every event file begins with."""
    if is_remote(directory):
        return PartsSink(open_storage(directory), directory, name, head, fence=fence)
    return FileSink(directory, name, head, fence=fence)
