"""Where exports appear: <path>/<Unix seconds>, the layout of TensorFlow Serving, which serves the largest number.

An export is a directory with a saved_model.pb. On a disk it appears by a rename. In a bucket, saved_model.pb comes last
and goes first."""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.logs import logger
from pipeline.storage.os_errors import explained
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join

__all__ = ["DESCRIPTION", "EXTRA", "GRAPH", "Exports"]

log = logger("trainer")

GRAPH, EXTRA, DESCRIPTION = "saved_model.pb", "assets.extra", "infeed.json"
_LOCK, _UNPUBLISHED = "lock", ".unpublished-"
_CHUNK = 8 * 1024**2
UNFINISHED_SECONDS = 24 * 3600.0  # no upload takes longer


class Exports:
    """The exports in a directory, on a disk or in a bucket."""

    def __init__(self, path: str) -> None:
        self.path = str(path).rstrip("/")
        self._storage = open_storage(self.path)

    def numbers(self) -> list[int]:
        """Names of the complete exports, ascending."""
        return [number for number in self._all_numbers() if self._storage.exists(join(self._place(number), GRAPH))]

    def _all_numbers(self) -> list[int]:
        _, names = self._storage.entries(self.path)
        return sorted(int(name) for name in names if name.isdecimal())

    def origin(self, number: int) -> dict[str, Any]:
        """What an export says of the model in it, see Origin; {} if it says nothing."""
        path = join(join(self._place(number), EXTRA), DESCRIPTION)
        return json.loads(self._storage.read(path))["origin"] if self._storage.exists(path) else {}

    @contextlib.contextmanager
    def unpublished(self) -> Iterator[Path]:
        """A new local directory to make an export in. It is removed on exit; what was published has moved out by then.

        On a disk it is beside the exports. Those that killed processes have left there are removed."""
        if self._storage.remote:
            with tempfile.TemporaryDirectory(prefix="infeed-export-") as directory:
                yield Path(directory)
            return
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            _remove_left(Path(self.path))
            directory = Path(tempfile.mkdtemp(prefix=_UNPUBLISHED, dir=self.path))
        except OSError as e:
            raise StorageError(f"cannot create exports in {self.path}: {explained(e)}") from e
        with (directory / _LOCK).open("wb") as lock:
            with contextlib.suppress(OSError):  # a file system without locks: then it is never removed by others
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    def publish(self, directory: Path) -> str:
        """Publishes a directory with a SavedModel, made below one of unpublished(). Returns where it is."""
        number = max(int(time.time()), *(known + 1 for known in self.numbers()), 0)
        if self._storage.remote:
            return self._upload(directory, number)
        for path in (*directory.rglob("*"), directory):
            _sync(path)
        while True:
            place = Path(self._place(number))
            try:
                directory.rename(place)
            except OSError as e:
                if not place.exists():
                    raise StorageError(f"cannot publish {place}: {explained(e)}") from e
                number += 1  # of an export in the same second
            else:
                _sync(place.parent)
                return str(place)

    def _upload(self, directory: Path, number: int) -> str:
        files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != GRAPH)
        while not self._storage.create(join(join(self._place(number), EXTRA), DESCRIPTION), b""):
            number += 1  # of an export in the same second
        place = self._place(number)
        try:
            for file in [*files, directory / GRAPH]:
                _copy(self._storage, file, join(place, file.relative_to(directory).as_posix()))
        except BaseException:
            with contextlib.suppress(StorageError):  # that of the upload is the one to tell
                self._remove(number)
            raise
        return place

    def keep(self, count: int) -> None:
        """Removes all exports but the `count` with the largest numbers; and what a killed process has left unfinished,
        after a day."""
        there, complete = self._all_numbers(), self.numbers()
        left = [number for number in there if number not in complete and number < time.time() - UNFINISHED_SECONDS]
        for number in [*left, *complete[:-count]]:
            log.info("export: removing %s", self._place(number))
            self._remove(number)

    def _remove(self, number: int) -> None:
        place = self._place(number)
        self._storage.delete(join(place, GRAPH))  # from here on it is no export
        directories = [place]
        for directory in directories:
            files, below = self._storage.entries(directory)
            directories += [join(directory, name) for name in below]
            for name in files:
                self._storage.delete(join(directory, name))
        if not self._storage.remote:
            shutil.rmtree(place, ignore_errors=True)

    def _place(self, number: int) -> str:
        return join(self.path, str(number))


def _remove_left(exports: Path) -> None:
    """Removes what killed processes have left: their locks are free."""
    for lock in exports.glob(f"{_UNPUBLISHED}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)


def _sync(path: Path) -> None:
    # Without it, a crash of the machine could leave an export with empty files.
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(storage: Storage, file: Path, path: str) -> None:
    with file.open("rb") as source, storage.publish(path) as sink:
        while chunk := source.read(_CHUNK):
            sink.write(chunk)
