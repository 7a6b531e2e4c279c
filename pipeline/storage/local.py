"""Storage on a local or mounted disk. Files appear by rename and survive a crash of the machine."""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import StorageError
from pipeline.storage.storage import (
    Change,
    Listing,
    MissingError,
    Ranges,
    Sink,
    Stat,
    explained,
    join,
    past_end,
)

LOCK_SECONDS = 60.0  # an update takes milliseconds
_HIDDEN = re.compile(r"\.(.+)\.\d+\.[0-9a-f]{8}\.tmp")  # see _hidden_beside


@contextlib.contextmanager
def _naming(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as e:
        if isinstance(e, NotADirectoryError) and action == "list" and Path(path).is_file():
            raise StorageError(f"{path} is a file. Give a directory.") from e
        kind = (
            MissingError if isinstance(e, FileNotFoundError | NotADirectoryError) else StorageError
        )
        raise kind(f"cannot {action} {path}: {explained(e)}") from e


class LocalStorage:
    """A local or mounted disk."""

    remote = False

    def stat(self, path: str) -> Stat:
        with _naming(path, "find"):
            status = Path(path).stat()
        _check_regular(path, status)
        return _stamped(status)

    def exists(self, path: str) -> bool:
        with _naming(path, "find"):
            return Path(path).exists()

    def read(self, path: str) -> bytes:
        with _naming(path, "read"), open(path, "rb", opener=_open_regular) as file:
            return file.read()

    def map(self, path: str) -> bytes | mmap.mmap:
        with _naming(path, "read"), open(path, "rb", opener=_open_regular) as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read_ranges(self, ranges: Ranges) -> Iterator[bytes]:
        """See Storage. Consecutive ranges of one file cost one open.

        There is no check for a named pipe: callers have asked for the size of the file before."""
        for path, of_file in itertools.groupby(ranges, itemgetter(0)):
            with _naming(path, "read"):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for _, offset, size in of_file:
                    yield _read_exactly(fd, path, offset, size)
            finally:
                os.close(fd)

    def open(self, path: str) -> BinaryIO:
        with _naming(path, "open"):
            return open(path, "rb", opener=_open_regular)

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage. Hidden temporary file in the same directory, fsync, rename, fsync of the
        directory.

        Links are not replaced: infeed makes none."""
        target = Path(path)
        if target.is_symlink():
            raise StorageError(
                f"{path} is a link, which is not replaced. Remove it, or give another place."
            )
        with _naming(path, "write"), _hidden_beside(target) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(target)
            sync(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        """See Storage. A hard link never replaces a file, so it decides between two creators."""
        target = Path(path)
        with _naming(path, "create"), _hidden_beside(target) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(file.name, target)
            except FileExistsError:
                return False
            return True

    def update(self, path: str, change: Change) -> None:
        """See Storage. Holds a lock on the directory, which the system releases when the process
        ends."""
        target = Path(path)
        with _naming(path, "update"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _sole_writer(target):
                data = change(self.read(path) if target.exists() else None)
                with self.publish(path) as sink:
                    sink.write(data)

    def list(self, directory: str) -> Listing:
        return self.entries(directory)[0]

    def entries(self, directory: str) -> tuple[Listing, Sequence[str]]:
        """See Storage. Anything else, such as a pipe or a dangling link, is listed as an empty
        file."""
        files = dict[str, Stat]()
        directories = list[str]()
        with _naming(directory, "list"):
            for entry in _entries(directory):
                try:
                    if entry.is_dir():
                        directories.append(entry.name)
                    else:
                        files[entry.name] = _stamped(entry.stat()) if entry.is_file() else Stat(0)
                except FileNotFoundError:
                    pass  # deleted or renamed since the scan
                except OSError as e:
                    if e.errno != errno.ELOOP:  # a link to itself
                        raise
                    files[entry.name] = Stat(0)
        return files, directories

    def delete(self, path: str) -> None:
        with _naming(path, "delete"):
            Path(path).unlink(missing_ok=True)

    def sweep(self, directory: str, names: Iterable[str]) -> None:
        """See Storage. A writer locks its temporary file until the process ends, so an unlocked one
        is abandoned."""
        names = list(names)
        for hidden in self.list(directory):
            match = _HIDDEN.fullmatch(hidden)
            if match and any(fnmatchcase(match[1], name) for name in names):
                path = Path(join(directory, hidden))
                gone = contextlib.suppress(FileNotFoundError, StorageError)  # or it is no file
                with (
                    _naming(str(path), "delete"),
                    gone,
                    open(path, "rb", opener=_open_regular) as file,
                ):
                    if _lock(file):
                        path.unlink()


def _stamped(status: os.stat_result) -> Stat:
    return Stat(status.st_size, stamp=_stamp(status))


def _stamp(status: os.stat_result) -> int:
    """Made of the times of a file. Copies may keep mtime, but no program can set ctime. Inode and
    device numbers would differ between hosts."""
    times = b"%d %d" % (status.st_mtime_ns, status.st_ctime_ns)
    return int.from_bytes(hashlib.blake2b(times, digest_size=8).digest(), "big")


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _hidden_beside(target: Path) -> Iterator[BinaryIO]:
    """A new, locked file in the directory of the target, so that a rename is atomic. Removed after
    the block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        hidden = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        with hidden.open("xb", buffering=1 << 16) as file:
            try:
                # If a sweep removed the file before it was locked, try again with another one.
                if _lock(file) and os.fstat(file.fileno()).st_nlink:
                    yield file
                    return
            finally:
                hidden.unlink(missing_ok=True)


@contextlib.contextmanager
def _sole_writer(target: Path) -> Iterator[None]:
    fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    end = time.monotonic() + LOCK_SECONDS
    try:
        while not _lock(fd):
            if time.monotonic() > end:
                what = f"another process has held the lock for {LOCK_SECONDS:g} s; it may be stuck."
                raise StorageError(f"cannot update {target}: {what}")
            time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _lock(file: BinaryIO | int) -> bool:
    """False if another process holds it. True on disks without locks, too; sweeps then assume that
    writers are dead."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor for reading. Nonblocking: opening a named pipe would wait for a writer, which
    may never come."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path} is a directory or a device, not a file.")


def _read_exactly(fd: int, path: str, offset: int, size: int) -> bytes:
    pieces = []
    at = offset
    end = offset + size
    while at < end:  # pread may return less: after a signal, above 2 GiB, on a network disk
        try:  # not _naming: a context manager would cost 2 us per record
            piece = os.pread(fd, end - at, at)
        except OSError as e:
            raise StorageError(f"cannot read {path}: {e.strerror or e}.") from e
        if not piece:
            raise past_end(path, at, offset, size)
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def sync(path: Path) -> None:
    """Makes a file, or the names in a directory, outlive a crash of the machine, which can lose a
    rename otherwise."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
