"""What storages of objects in buckets have in common. Objects appear completely or not at all, so
shards get their final names directly."""

import contextlib
import io
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, cast

from pipeline.errors import StorageError
from pipeline.storage.ranges import read_ahead
from pipeline.storage.storage import Change, Listing, MissingError, Ranges, Stat, join, past_end

_UPDATES = 50
FIRST_READ_BYTES = 64 * 1024
MAX_READ_BYTES = 4 * 1024**2


class ObjectStorage(ABC):
    """Objects in any bucket, with paths such as gs://bucket/dir/name. A directory is a common
    prefix. Any thread may use it.

    A subclass has the rest of Storage, and these methods."""

    remote = True

    @abstractmethod
    def stat(self, path: str) -> Stat:
        """See Storage."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """See Storage. Raises MissingError."""

    @abstractmethod
    def found(self, directory: str) -> tuple[Listing, Collection[str]]:
        """The files directly in a directory, and the names of its subdirectories, in any order."""

    @abstractmethod
    def part(self, path: str, offset: int, size: int, left: threading.Event | None) -> bytes:
        """The bytes of a range up to the end of the object; StorageError if it begins there. left:
        set once no caller waits."""

    @abstractmethod
    def current(self, path: str) -> tuple[Any, bytes | None]:
        """The version of an object and its content, which is never older; None if there is none."""

    @abstractmethod
    def replaced(self, path: str, version: Any, data: bytes) -> bool:
        """Writes a small object if it still has this version, or None for none. False if not."""

    def map(self, path: str) -> bytes:
        """See Storage."""
        return self.read(path)

    def read_range(
        self, path: str, offset: int, size: int, left: threading.Event | None = None
    ) -> bytes:
        """Exactly `size` bytes; StorageError past the end. left: see `part`."""
        if not size:
            return b""
        try:
            data = self.part(path, offset, size, left)
            if len(data) != size:
                raise StorageError(
                    f"cannot read {path}: {len(data)} bytes of {size} at byte {offset}."
                )
        except MissingError:
            raise
        except StorageError:
            if not (left and left.is_set()) and (end := self.stat(path).bytes) < offset + size:
                raise past_end(path, end, offset, size) from None
            raise
        return data

    def read_ranges(self, ranges: Ranges) -> Iterator[bytes]:
        """See Storage. Reads up to 64 requests and 72 MiB ahead."""
        return read_ahead(ranges, self.read_range)

    def open(self, path: str) -> BinaryIO:
        """See Storage. Reads small ranges first, and larger ones the longer reading is
        sequential."""
        file = RangeFile(self.stat(path).bytes, partial(self.read_range, path))
        return cast(BinaryIO, io.BufferedReader(file, FIRST_READ_BYTES // 8))

    def create(self, path: str, data: bytes) -> bool:
        """See Storage. The bucket decides between two creators."""
        return self.replaced(path, None, data)

    def update(self, path: str, change: Change) -> None:
        """See Storage. Replaces only the version that was read. Losing that race 50 times is an
        error."""
        for attempt in range(_UPDATES):
            with contextlib.suppress(MissingError):  # deleted between two requests
                version, old = self.current(path)
                data = change(old)
                # Nothing to change is no error in buckets that forbid replacing objects.
                if data == old or self.replaced(path, version, data):
                    return
            time.sleep(random.SystemRandom().uniform(0, 0.1 * attempt))
        raise StorageError(
            f"cannot update {path}: others changed it first, {_UPDATES} times. Run the same "
            "command again."
        )

    def list(self, directory: str) -> Listing:
        """See Storage. One request per 1,000 names, in sequence."""
        return self.found(directory)[0]

    def entries(self, directory: str) -> tuple[Listing, Sequence[str]]:
        """See Storage. Raises StorageError for an object whose name has an empty part: joined with
        it, the path of the directory would be that of the directory itself."""
        files, names = self.found(directory)
        if "" in names:
            raise StorageError(
                f"cannot list {directory}: the name of an object has an empty part, as in "
                f"{join(directory, '/name')}. Rename the object."
            )
        return files, sorted(names)

    def sweep(self, directory: str, names: Iterable[str]) -> None:  # noqa: B027
        """See Storage. Does nothing: an unfinished upload is never visible, and the bucket, or a
        lifecycle rule, removes it."""


class RangeFile(io.RawIOBase):
    """A seekable object. The ranges it reads double during sequential reading and restart small
    after a far seek."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._size = size
        self._at = self._from = 0
        self._ahead = b""
        self._next_bytes = FIRST_READ_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(
            0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        )
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        if self._at >= self._size:
            return 0
        if not self._from <= self._at < self._from + len(self._ahead):
            self._fetch()
        start = self._at - self._from
        piece = self._ahead[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _fetch(self) -> None:
        gap = self._at - (self._from + len(self._ahead))
        near = 0 <= gap < self._next_bytes
        self._next_bytes = min(2 * self._next_bytes, MAX_READ_BYTES) if near else FIRST_READ_BYTES
        size = min(self._next_bytes, self._size - self._at)
        # frees the old piece first: a scan has 16 files open
        self._from = self._at
        self._ahead = b""
        self._ahead = self._read(self._at, size)
