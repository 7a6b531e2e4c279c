"""Storage on a local or mounted disk: files appear by rename, and survive a crash of the machine."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from pipeline.shards.errors import StorageError
from pipeline.shards.os_errors import explained
from pipeline.shards.stamps import stamped
from pipeline.shards.storage import Sink, Stat, join

__all__ = ["LocalStorage"]

LOCK_SECONDS = 60.0  # for what takes milliseconds
_HIDDEN = re.compile(r"\.(.+)\.\d+\.[0-9a-f]{8}\.tmp")  # see _hidden_beside


@contextlib.contextmanager
def _naming(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if isinstance(e, StorageError):
            raise
        raise StorageError(f"cannot {action} {path}: {explained(e)}") from e


class LocalStorage:
    """A local or mounted disk."""

    remote = False

    def stat(self, path: str) -> Stat:
        """See Storage."""
        with _naming(path, "find"):
            found = Path(path).stat()
        _check_regular(path, found)
        return stamped(found)

    def exists(self, path: str) -> bool:
        """See Storage."""
        return Path(path).exists()

    def read(self, path: str) -> bytes:
        """See Storage."""
        with _naming(path, "read"), open(path, "rb", opener=_open_regular) as file:
            return file.read()

    def read_ranges(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
        """See Storage. Keeps the last file open: ranges of one tar cost one open in all.

        Whoever asks for ranges has asked for the file's size before, so a named pipe is not looked for here."""
        open_path, fd = "", -1
        try:
            for path, offset, size in ranges:
                if path != open_path:
                    if fd >= 0:
                        os.close(fd)
                        open_path, fd = "", -1
                    with _naming(path, "read"):
                        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    open_path = path
                yield _read_exactly(fd, path, offset, size)
        finally:
            if fd >= 0:
                os.close(fd)

    def open(self, path: str) -> BinaryIO:
        """See Storage."""
        with _naming(path, "open"):
            return open(path, "rb", opener=_open_regular)

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage: a hidden temporary file beside the target, fsync, rename, fsync of the directory."""
        target = Path(path)
        with _naming(path, "write"), _hidden_beside(target) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(target)
            _fsync_directory(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        """See Storage: a hard link cannot replace, so it decides between two creators."""
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

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        """See Storage: under a lock on the directory, which ends with the process."""
        target = Path(path)
        with _naming(path, "update"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _sole_writer(target):
                data = change(target.read_bytes() if target.exists() else None)
                with self.publish(path) as sink:
                    sink.write(data)

    def list(self, directory: str) -> dict[str, Stat]:
        """See Storage. What is neither file nor folder, a link to nowhere or a pipe, counts as a file of no bytes."""
        with _naming(directory, "list"):
            stats = {e.name: _stat_of(e) for e in _entries(directory) if not _is_folder(e)}
        return {name: stat for name, stat in stats.items() if stat is not None}

    def entries(self, directory: str) -> tuple[dict[str, Stat], Sequence[str]]:
        """See Storage."""
        with _naming(directory, "list"):
            return self.list(directory), [entry.name for entry in _entries(directory) if _is_folder(entry)]

    def delete(self, path: str) -> None:
        """See Storage."""
        with _naming(path, "delete"):
            Path(path).unlink(missing_ok=True)

    def sweep(self, directory: str, names: Iterable[str]) -> None:
        """See Storage. Whoever writes a file holds a lock on it, which ends with the process, whatever ends that."""
        names = list(names)
        for hidden in self.list(directory):
            match = _HIDDEN.fullmatch(hidden)
            if match and any(fnmatchcase(match[1], name) for name in names):
                path = Path(join(directory, hidden))
                with _naming(str(path), "delete"), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    if _lock(file):
                        path.unlink()


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with _no_loop():
        return entry.is_dir()
    return False


def _stat_of(entry: os.DirEntry[str]) -> Stat | None:
    """None for a file that is gone since it was listed: another process has renamed what it wrote, say."""
    with _no_loop():
        try:
            return stamped(entry.stat()) if entry.is_file() else Stat(0)
        except FileNotFoundError:
            return None
    return Stat(0)


@contextlib.contextmanager
def _no_loop() -> Iterator[None]:
    """Leaves the block where a link leads to itself."""
    try:
        yield
    except OSError as e:
        if e.errno != errno.ELOOP:
            raise


@contextlib.contextmanager
def _hidden_beside(target: Path) -> Iterator[BinaryIO]:
    """A new file in the target's directory (so that a rename is atomic), locked; its name is gone after the block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        hidden = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        with hidden.open("xb", buffering=1 << 16) as file:
            try:
                # A sweep may have met the file before its lock: then there is another one.
                if _lock(file) and os.fstat(file.fileno()).st_nlink:
                    yield file
                    return
            finally:
                hidden.unlink(missing_ok=True)


@contextlib.contextmanager
def _sole_writer(target: Path) -> Iterator[None]:
    fd, end = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY), time.monotonic() + LOCK_SECONDS
    try:
        while not _lock(fd):
            if time.monotonic() > end:
                raise StorageError(
                    f"cannot update {target}: another process has been at it for {LOCK_SECONDS:g} s. Does it hang?"
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _lock(file: BinaryIO | int) -> bool:
    """False if another holds it. True also on a disk without locks, where a sweep takes every writer for dead."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor for reading. Nonblocking: to open a named pipe would wait for a writer, which may never come."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{path} is a directory or a device, not a file.")


def _read_exactly(fd: int, path: str, offset: int, size: int) -> bytes:
    data = _pread(fd, path, size, offset)
    while len(data) < size:  # pread may return less than it was asked for: a signal, 2 GiB, a network disk
        more = _pread(fd, path, size - len(data), offset + len(data))
        if not more:
            raise StorageError(
                f"{path} ends at byte {offset + len(data)}, but bytes {offset}..{offset + size} are needed. "
                "It is truncated, or changed while it was read."
            )
        data += more
    return data


def _pread(fd: int, path: str, size: int, offset: int) -> bytes:
    try:  # not _naming: a context manager would cost 2 us a record
        return os.pread(fd, size, offset)
    except OSError as e:
        raise StorageError(f"cannot read {path}: {e.strerror or e}.") from e


def _fsync_directory(directory: Path) -> None:
    """Without it a crash of the machine can lose the rename though the data was synced."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
