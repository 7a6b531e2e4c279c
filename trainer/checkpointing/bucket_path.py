"""Orbax in a bucket: a path of etils' kind over our own storage, and bounds on the waits of Orbax's array store.

Orbax reaches gs:// by two ways at once: arrays by tensorstore, all else by etils.epath. The latter would take
TensorFlow (1.8 GB) where it is installed and gcsfs elsewhere, each with its own waits, retries and errors; so it is
given paths of this class, and what holds for our other requests holds for these."""

import contextlib
import os
from collections.abc import Iterator

from etils import epath

from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import Storage, join

__all__ = ["TENSORSTORE_RETRIES", "BucketPath", "bound_stalls", "orbax_path"]

# After 1, 2, 4, ... 32, 32 s: about two minutes, as for our own requests. Tensorstore's 32 are a quarter of an hour.
TENSORSTORE_RETRIES = {"max_retries": 7}
# A transfer that stands still for a minute is one of these failures; tensorstore itself would wait for ever.
TENSORSTORE_STALL = {
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
}


def orbax_path(path: str) -> epath.Path:
    """The path as Orbax takes it."""
    if not is_remote(path):
        return epath.Path(path).absolute()
    _bound_waits()
    return BucketPath(path)


def bound_stalls() -> None:
    """From now on a transfer of tensorstore's that stands still is a failure."""
    for variable, value in TENSORSTORE_STALL.items():
        os.environ.setdefault(variable, value)


def _bound_waits() -> None:
    bound_stalls()
    # For the retries there is no variable, and Orbax has no option. An Orbax that keeps its contexts elsewhere (a test
    # says so) still works; it tries for longer.
    with contextlib.suppress(ImportError, AttributeError):
        from orbax.checkpoint._src.serialization import tensorstore_utils

        for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
            context["gcs_request_retries"] = TENSORSTORE_RETRIES


@epath.register_path_cls
class BucketPath(epath.Path):
    """A file or directory by its whole path, such as gs://bucket/dir. Has the methods that Orbax calls.

    A directory is a common prefix; an empty one is an object whose name ends in a slash, as in Google's own tools."""

    @property
    def _storage(self) -> Storage:
        return open_storage(str(self))

    def __str__(self) -> str:
        scheme, *rest = self.parts  # a pure path takes the second slash of gs:// for one too many
        return f"{scheme}//{'/'.join(rest)}"

    def __fspath__(self) -> str:
        return str(self)

    def is_absolute(self) -> bool:
        """Always."""
        return True

    def resolve(self, strict: bool = False) -> "BucketPath":
        """Itself."""
        del strict
        return self

    def exists(self) -> bool:
        """Whether there is such an object, or one beneath it."""
        return self._storage.exists(str(self))

    def is_dir(self) -> bool:
        """Whether there is an object beneath it."""
        return self._storage.exists(f"{self}/")

    def iterdir(self) -> Iterator["BucketPath"]:
        """Files and directories directly in it; none where there is no such directory."""
        files, directories = self._storage.entries(str(self))
        for name in (*files, *directories):
            yield self / name

    def glob(self, pattern: str) -> Iterator["BucketPath"]:
        """What is directly in it and matches."""
        return (path for path in self.iterdir() if path.match(pattern))

    def read_bytes(self) -> bytes:
        """The whole object."""
        return self._storage.read(str(self))

    def read_text(self, encoding: str | None = None) -> str:
        """The whole object."""
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: bytes) -> int:
        """Publishes the object; how many bytes it has."""
        with self._storage.publish(str(self)) as sink:
            sink.write(data)
        return len(data)

    def write_text(self, data: str, encoding: str | None = None, errors: str | None = None) -> int:
        """Publishes the object; how many bytes it has."""
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes it an empty directory. FileExistsError if it is one already, unless that is allowed."""
        del mode, parents
        if not self._storage.create(f"{self}/", b"") and not exist_ok:
            raise FileExistsError(f"{self} is there already.")

    def rmtree(self, missing_ok: bool = False) -> None:
        """Removes every object beneath it, one by one. Never an error: a retry finds less to remove."""
        del missing_ok
        files, directories = self._storage.entries(str(self))
        for name in files:  # first, with the word that a checkpoint is whole: killed in between, it is none
            self._storage.delete(join(str(self), name))
        for name in directories:
            (self / name).rmtree()
        self._storage.delete(f"{self}/")

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the object. No error if it is gone already."""
        del missing_ok
        self._storage.delete(str(self))
