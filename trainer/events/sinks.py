"""Where events and metrics go: one file that grows on a local disk, a row of whole objects in a bucket."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, cast

from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import Storage, join

__all__ = ["FileSink", "PartsSink", "Sink", "open_sink"]

PART_SECONDS = 30.0


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
    """One file that grows: a new one, or in mode "ab" one that may be there."""

    def __init__(self, directory: str, name: str, head: bytes, mode: Literal["xb", "ab"] = "xb") -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = cast(BinaryIO, Path(directory, name).open(mode))  # noqa: SIM115 (close closes it)
        self._file.write(head)

    def write(self, record: bytes) -> None:
        """See Sink."""
        self._file.write(record)

    def flush(self, now: bool = False) -> None:
        """See Sink. Always at once."""
        del now
        self._file.flush()

    def close(self) -> None:
        """See Sink."""
        self._file.close()


class PartsSink:
    """Objects cannot be appended to, so the records come as parts `<name>.000000`, ...: each begins with `head` and is
    a file of its own. Readers take them in the order of their names. `number` is that of the first.

    A part appears at most every 30 s, and where it is asked for `now`: a day of training is 2,880 of them."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        name: str,
        head: bytes,
        clock: Callable[[], float] = time.monotonic,
        number: int = 0,
    ) -> None:
        self._storage, self._path, self._head, self._clock = storage, join(directory, name), head, clock
        self._records, self._number, self._published_at = bytearray(), number, clock()

    def write(self, record: bytes) -> None:
        """See Sink."""
        self._records += record

    def flush(self, now: bool = False) -> None:
        """See Sink."""
        if not self._records or not (now or self._clock() - self._published_at >= PART_SECONDS):
            return
        with self._storage.publish(f"{self._path}.{self._number:06d}") as sink:
            sink.write(self._head + self._records)
        self._records.clear()
        self._number += 1
        self._published_at = self._clock()

    def close(self) -> None:
        """See Sink."""
        self.flush(now=True)


def open_sink(directory: str, name: str, head: bytes) -> Sink:
    """The sink for events in this directory; `head` is the record that every event file begins with."""
    if is_remote(directory):
        return PartsSink(open_storage(directory), directory, name, head)
    return FileSink(directory, name, head)
