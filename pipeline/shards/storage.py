"""Where bytes live: one small interface, and what can be done with any implementation of it.

Everything that reads or writes shards goes through it; schemes.py opens the one that a path belongs to. Paths are
whole: a directory joined with a name. A file becomes visible whole or not at all."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple, Protocol, TypeVar, runtime_checkable

import google_crc32c

__all__ = ["Sink", "Stat", "Storage", "file_crc32c", "files_at_once", "in_parallel", "join"]

_AT_ONCE = 32
_FILES_AT_ONCE, _REMOTE_FILES_AT_ONCE = 8, 4  # a bucket reads up to 64 MiB ahead in each
_PIECE_BYTES = 8 * 1024**2

T = TypeVar("T")
R = TypeVar("R")


class Stat(NamedTuple):
    """What a storage says of a file without reading it."""

    bytes: int
    crc32c: int | None = None  # None where the storage keeps no checksum: a disk
    stamp: int | None = None  # of the times of a file on a disk: another one when it is written again, moved or copied

    def agrees_with(self, other: "Stat") -> bool:
        """Whether both can be of the same bytes: equal sizes, and equal checksums and stamps where both have one."""
        pairs = ((self.crc32c, other.crc32c), (self.stamp, other.stamp))
        return self.bytes == other.bytes and all(None in pair or pair[0] == pair[1] for pair in pairs)

    @property
    def version(self) -> str:
        """What tells one content of a file from another of the same size; "" if the storage says nothing."""
        if self.crc32c is not None:
            return f"{self.crc32c:08x}"
        return "" if self.stamp is None else f"{self.stamp:016x}"

    def __str__(self) -> str:
        return f"{self.bytes} bytes" + ("" if self.crc32c is None else f" with crc32c {self.crc32c:08x}")


class Sink(Protocol):
    """Takes the bytes of one new file, front to back."""

    def write(self, data: bytes, /) -> object:
        """Appends `data`."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Reads ranges, publishes whole files, lists. Every failure is a StorageError that names the path."""

    remote: bool
    """Whether a read waits for a network: then few large reads are worth the memory that they take."""

    def stat(self, path: str) -> Stat:
        """Size of the file, and its checksum or stamp."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file (or, on disk, a directory) of this name."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file."""
        ...

    def read_ranges(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
        """The bytes of each (path, offset, size), in order. A range past the end is an error, never short data."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A seekable file for scanning archive headers: buffered little, so that skipping payload costs nothing."""
        ...

    def publish(self, path: str) -> contextlib.AbstractContextManager[Sink]:
        """A sink for a new file that appears, or replaces the old one, at the end of the `with` block.

        After an exception in the block there is no file, and no trace of the attempt."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Writes a small file unless one of this name exists. False if it does: of two creators, one wins."""
        ...

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replaces a small file by what `change` makes of it; None stands for no file.

        Of two at the same time, the second changes what the first wrote, so `change` may be called more than once."""
        ...

    def list(self, directory: str) -> dict[str, Stat]:
        """Name -> what `stat` says of the files directly in a directory, in sorted order; {} where there is none."""
        ...

    def entries(self, directory: str) -> tuple[dict[str, Stat], Sequence[str]]:
        """What `list` gives, and the sorted names of the directories beside these files, for the price of one."""
        ...

    def delete(self, path: str) -> None:
        """Removes one file; no error if it is gone already."""
        ...

    def sweep(self, directory: str, names: Iterable[str]) -> None:
        """Removes what publications of these names (* is any text) left in a directory when they were killed.

        Those that are still under way are not touched."""
        ...


def join(directory: str, name: str) -> str:
    """One whole path."""
    return f"{directory.rstrip('/') or '/'}/{name}" if directory != "/" else f"/{name}"


def files_at_once(storage: Storage) -> int:
    """How many files to read through at a time, each by a thread of its own that also looks into the bytes."""
    most = _REMOTE_FILES_AT_ONCE if storage.remote else _FILES_AT_ONCE
    return min(most, os.cpu_count() or 1)


def in_parallel(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results in order, of up to 32 calls at once: on gs:// each alone would wait for its ~50 ms.

    Raises what the first failing call raised; calls that were not begun then never are."""
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(items)))) as pool:
        return list(pool.map(function, items))


def file_crc32c(storage: Storage, path: str) -> int:
    """The plain crc32c of a whole file, read in pieces of 8 MiB."""
    size, checksum = storage.stat(path).bytes, google_crc32c.Checksum()
    for piece in storage.read_ranges((path, at, min(_PIECE_BYTES, size - at)) for at in range(0, size, _PIECE_BYTES)):
        checksum.update(piece)
    return int.from_bytes(checksum.digest(), "big")
