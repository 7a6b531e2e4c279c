"""The storage interface, and functions that work with every implementation of it.

Everything that reads or writes shards uses it; schemes.py opens the storage of a path. Paths are
complete: a directory joined with a name. A file becomes visible completely or not at all."""

import contextlib
import errno
import mmap
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.pool import Pool, ThreadPool
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from pipeline.errors import InfeedError, RawDataError, StorageError
from pipeline.machine import num_cores

_LIBRARIES = {
    ".gz": "gzip",
    ".bz2": "bz2",
    ".zst": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}
COMPRESSED = tuple(_LIBRARIES)
"""How the names of compressed files end, whose content is read."""
_FILES_AT_ONCE, _REMOTE_FILES_AT_ONCE = 8, 4  # from a bucket, each reads up to 72 MiB ahead
T = TypeVar("T")
R = TypeVar("R")


class MissingError(StorageError):
    """There is no such file; of a bucket that does not exist, it is another StorageError."""


class Stat(NamedTuple):
    """What a storage reports about a file without reading it."""

    bytes: int
    crc32c: int | None = None  # None if the storage keeps no checksums, as a disk
    # hash of the times of a file on a disk; changes when it is rewritten, moved or copied
    stamp: int | None = None

    def agrees_with(self, other: "Stat") -> bool:
        """Whether both may describe the same bytes: sizes are equal, and checksums and stamps where
        both have one."""
        pairs = ((self.crc32c, other.crc32c), (self.stamp, other.stamp))
        return self.bytes == other.bytes and all(
            None in pair or pair[0] == pair[1] for pair in pairs
        )

    @property
    def version(self) -> str:
        """Distinguishes contents of the same size: the checksum or stamp; "" if the storage keeps
        neither."""
        if self.crc32c is not None:
            return f"{self.crc32c:08x}"
        return "" if self.stamp is None else f"{self.stamp:016x}"

    def __str__(self) -> str:
        with_crc = "" if self.crc32c is None else f" with crc32c {self.crc32c:08x}"
        return f"{self.bytes} bytes{with_crc}"


Listing = Mapping[str, Stat]
"""What a storage reports about files, by name or path."""
Ranges = Iterable[tuple[str, int, int]]
"""(path, offset, size) of each."""
Change = Callable[[bytes | None], bytes]
"""From the content of a file, None if there is none, to its new content."""


class Sink(Protocol):
    """Accepts the bytes of a new file, in order."""

    def write(self, data: bytes, /) -> object:
        """Appends `data`."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Reads ranges, publishes files, lists directories. Every failure is a StorageError that names
    the path."""

    remote: bool
    """Whether reads wait for a network, so that a few large ones are worth the memory they take."""

    def stat(self, path: str) -> Stat:
        """The size of the file, and its checksum or stamp."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file (or, on disk, a directory) of this name."""
        ...

    def read(self, path: str) -> bytes:
        """The content of the file. Raises MissingError."""
        ...

    def map(self, path: str) -> bytes | mmap.mmap:
        """The content of the file; on a disk its pages, which are read when they are needed, and
        which all processes share."""
        ...

    def read_ranges(self, ranges: Ranges) -> Iterator[bytes]:
        """The bytes of each (path, offset, size), in order. A range past the end is an error, never
        short data."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A seekable file for scanning archive headers. The buffer is small, so that skipping
        payload costs nothing."""
        ...

    def publish(self, path: str) -> contextlib.AbstractContextManager[Sink]:
        """A sink for a new file, which appears or replaces the old one at the end of the `with`
        block.

        An exception in the block leaves neither the file nor a trace of the attempt."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Writes a small file unless one with this name exists. False if it does: of two creators,
        one wins."""
        ...

    def update(self, path: str, change: Change) -> None:
        """Replaces the content of a small file with `change(content)`. `change` gets None if there
        is no file.

        Of two concurrent updates, the second changes the result of the first, so `change` may be
        called repeatedly."""
        ...

    def list(self, directory: str) -> Listing:
        """Name -> `stat` of each file directly in a directory, sorted by name; {} if there is no
        such directory."""
        ...

    def entries(self, directory: str) -> tuple[Listing, Sequence[str]]:
        """The result of `list`, and the sorted names of the subdirectories, at the cost of one
        listing."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file. A missing file is no error."""
        ...

    def sweep(self, directory: str, names: Iterable[str]) -> None:
        """Removes what killed publications of files with these names (* matches any text) left in a
        directory.

        Publications in progress are not affected."""
        ...


def join(directory: str, name: str) -> str:
    """A complete path."""
    return f"{directory.rstrip('/')}/{name}"


def find_file(storage: Storage, path: str) -> Stat | None:
    """The Stat of a file; None if there is none, also if the path is a directory."""
    try:
        return storage.stat(path)
    except StorageError:
        return None


def read_file(storage: Storage, path: str) -> bytes | None:
    """The content of a file; None if there is none."""
    try:
        return storage.read(path)
    except MissingError:
        return None


def write_file(storage: Storage, path: str, data: bytes) -> None:
    """Publishes a file with this content, which replaces the old one."""
    with storage.publish(path) as sink:
        sink.write(data)


def files_at_once(storage: Storage) -> int:
    """How many files to read and check concurrently, with a thread for each."""
    most = _REMOTE_FILES_AT_ONCE if storage.remote else _FILES_AT_ONCE
    return min(most, num_cores())


class _Threads(ThreadPool):
    def __init__(self, count: int):
        # ThreadPool takes the default context: since Python 3.14 its lock starts a process, which
        # imports modules of the current directory.
        Pool.__init__(self, count, context=get_context("fork"))


def in_parallel(function: Callable[[T], R], items: Sequence[T], at_once: int = 32) -> list[R]:
    """The results in order, from concurrent calls: on gs:// each call takes about 50 ms.

    Raises the first failing call's exception; calls that have not started by then never do."""
    # Not an executor: Ctrl-C would wait for calls that hang, because the process joins its threads
    # at exit.
    with _Threads(max(1, min(at_once, len(items)))) as pool:
        try:
            return list(pool.imap(function, items))
        except Exception:  # what has started cleans up after itself
            pool.terminate()
            pool.join()
            raise


def pieces_of(
    storage: Storage,
    path: str,
    size: int,
    piece_bytes: int,
    checksum: Any,
    read: Callable[[int], object] | None = None,
) -> Iterator[bytes]:
    """The first `size` bytes of a file, in pieces, which `checksum` is updated with. read: called
    with their sizes."""
    ranges = ((path, at, min(piece_bytes, size - at)) for at in range(0, size, piece_bytes))
    for piece in storage.read_ranges(ranges):
        checksum.update(piece)
        if read:
            read(len(piece))
        yield piece


def past_end(path: str, end: int, offset: int, size: int) -> StorageError:
    """The error for a range that a file, which ends at byte `end`, does not contain."""
    return StorageError(
        f"{path} ends at byte {end}, but bytes {offset}..{offset + size} are needed. "
        "It is truncated, or changed while it was read."
    )


_FULL = "Free space there, then run the same command again."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: (
        "It is larger than this process (ulimit -f) or the file system allows; choose another "
        "place."
    ),
    errno.EROFS: "Choose a directory on another file system.",
    errno.EACCES: "Grant this user access to it, or choose another place.",
    errno.EPERM: "Grant this user access to it, or choose another place.",
    errno.EEXIST: "A file has this name; choose another place.",
    errno.ENOTDIR: "A part of the path is a file; choose another place.",
}


def explained(error: OSError) -> str:
    """The message and the remedy in sentences, without the path: No space left on device. Free
    space there, ..."""
    return f"{error.strerror or error}. {_ADVICE.get(error.errno or 0, '')}".rstrip()


def advice_for(text: str) -> str:
    """The remedy for an error of which a library kept only the text; "" if there is none."""
    return next((advice for number, advice in _ADVICE.items() if os.strerror(number) in text), "")


def is_compressed(path: str) -> bool:
    """Whether its name is that of a compressed file."""
    return path.lower().endswith(COMPRESSED)


@contextlib.contextmanager
def uncompressed(storage: Storage, path: str) -> Iterator[BinaryIO]:
    """The file from its beginning, uncompressed if its name is_compressed. Raises RawDataError,
    StorageError; InfeedError where nothing uncompresses it."""
    with storage.open(path) as file:
        if not is_compressed(path):
            yield file
            return
        library = _library(path)
        try:
            with library.open(file) as stream:
                yield cast(BinaryIO, stream)
        except InfeedError:
            raise
        except (EOFError, OSError, zlib.error, getattr(library, "ZstdError", EOFError)) as e:
            raise RawDataError(f"{path} is truncated or damaged: {e}. Copy it again.") from e


def _library(path: str) -> Any:
    name = _LIBRARIES[f".{path.lower().rpartition('.')[2]}"]
    try:
        return import_module(name)
    except ImportError as e:
        raise InfeedError(
            f"{path} needs {name} ({e}). Install it: pip install {name}; or uncompress the file."
        ) from e
