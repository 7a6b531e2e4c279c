"""Where bytes live: one small interface, and the local disk behind it.

Everything that reads or writes shards goes through it, so that a gs:// bucket is one more implementation.
Paths are whole: a directory joined with a name. A file becomes visible whole or not at all."""

import contextlib
import os
import re
import secrets
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import google_crc32c

from pipeline.shards.errors import OptionError, StorageError

__all__ = ["LocalStorage", "Sink", "Storage", "file_crc32c", "join", "open_storage"]

_HIDDEN = re.compile(r"\.(.+)\.\d+\.[0-9a-f]{8}\.tmp")  # see _hidden_beside
_PIECE_BYTES = 8 * 1024**2


class Sink(Protocol):
    """Takes the bytes of one new file, front to back."""

    def write(self, data: bytes, /) -> object:
        """Appends `data`."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Reads ranges, publishes whole files, lists. Every failure is a StorageError that names the path."""

    def size(self, path: str) -> int:
        """Bytes in the file."""
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

    def list(self, directory: str) -> dict[str, int]:
        """Name -> size in bytes of the files directly in a directory, in sorted order; {} where there is none."""
        ...

    def subdirectories(self, directory: str) -> Sequence[str]:
        """The names of the directories directly in a directory, sorted; none where there is no directory."""
        ...

    def delete(self, path: str) -> None:
        """Removes one file; no error if it is gone already."""
        ...

    def sweep(self, directory: str, names: Container[str]) -> None:
        """Removes what publications of these names left in a directory when they were killed."""
        ...


def join(directory: str, name: str) -> str:
    """One whole path."""
    return f"{directory.rstrip('/') or '/'}/{name}" if directory != "/" else f"/{name}"


def open_storage(uri: str) -> Storage:
    """The storage that `uri` lives in. Raises OptionError for a scheme that is not known."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return LocalStorage()
    raise OptionError(f"{uri!r}: storage {scheme}:// is not supported. Allowed: a path on a local disk.")


def file_crc32c(storage: Storage, path: str) -> int:
    """The plain crc32c of a whole file, read in pieces of 8 MiB."""
    size, checksum = storage.size(path), google_crc32c.Checksum()
    for piece in storage.read_ranges((path, at, min(_PIECE_BYTES, size - at)) for at in range(0, size, _PIECE_BYTES)):
        checksum.update(piece)
    return int.from_bytes(checksum.digest(), "big")


@contextlib.contextmanager
def _naming(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if isinstance(e, StorageError):
            raise
        raise StorageError(f"cannot {action} {path}: {e.strerror or e}.") from e


class LocalStorage:
    """A local or mounted disk."""

    def size(self, path: str) -> int:
        """See Storage."""
        with _naming(path, "find"):
            return Path(path).stat().st_size

    def exists(self, path: str) -> bool:
        """See Storage."""
        return Path(path).exists()

    def read(self, path: str) -> bytes:
        """See Storage."""
        with _naming(path, "read"):
            return Path(path).read_bytes()

    def read_ranges(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
        """See Storage. Keeps the last file open: ranges of one tar cost one open in all."""
        open_path, fd = "", -1
        try:
            for path, offset, size in ranges:
                with _naming(path, "read"):
                    if path != open_path:
                        if fd >= 0:
                            os.close(fd)
                            open_path, fd = "", -1
                        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                        open_path = path
                    yield _read_exactly(fd, path, offset, size)
        finally:
            if fd >= 0:
                os.close(fd)

    def open(self, path: str) -> BinaryIO:
        """See Storage."""
        with _naming(path, "open"):
            return Path(path).open("rb")

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage: a hidden temporary file beside the target, fsync, rename, fsync of the directory."""
        target = Path(path)
        with _naming(path, "write"), _hidden_beside(target) as hidden:
            with hidden.open("xb", buffering=1 << 20) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(target)
            _fsync_directory(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        """See Storage: a hard link cannot replace, so it decides between two creators."""
        target = Path(path)
        with _naming(path, "create"), _hidden_beside(target) as hidden:
            with hidden.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(hidden, target)
            except FileExistsError:
                return False
            return True

    def list(self, directory: str) -> dict[str, int]:
        """See Storage."""
        with _naming(directory, "list"):
            return {e.name: e.stat().st_size for e in _entries(directory) if e.is_file()}

    def subdirectories(self, directory: str) -> Sequence[str]:
        """See Storage."""
        with _naming(directory, "list"):
            return [entry.name for entry in _entries(directory) if entry.is_dir()]

    def delete(self, path: str) -> None:
        """See Storage."""
        with _naming(path, "delete"):
            Path(path).unlink(missing_ok=True)

    def sweep(self, directory: str, names: Container[str]) -> None:
        """See Storage. A writer that is still alive fails at its rename, and may try again."""
        for hidden in self.list(directory):
            match = _HIDDEN.fullmatch(hidden)
            if match and match[1] in names:
                self.delete(join(directory, hidden))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _hidden_beside(target: Path) -> Iterator[Path]:
    """A name in the target's directory (so that a rename is atomic) that is gone after the block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


def _read_exactly(fd: int, path: str, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    while len(data) < size:  # pread may return less than it was asked for: a signal, 2 GiB, a network disk
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise StorageError(
                f"{path} ends at byte {offset + len(data)}, but bytes {offset}..{offset + size} are needed. "
                "It is truncated, or changed while it was read."
            )
        data += more
    return data


def _fsync_directory(directory: Path) -> None:
    """Without it a crash of the machine can lose the rename though the data was synced."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
