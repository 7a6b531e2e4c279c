"""The paths that Orbax writes to: fenced, so that only the owner of the work directory publishes,
and in buckets.

Orbax accesses buckets in two ways: arrays through tensorstore, everything else through etils.epath.
The latter would use TensorFlow (1.8 GB) if installed and gcsfs or s3fs otherwise, each with its own
waits, retries and errors. It gets paths of this class instead, so that these requests behave like
all our others. The waits of its array store are bounded, and its errors become one line."""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from etils import epath
from etils.epath.gpath import PosixGPath

from pipeline.errors import CheckpointError, InfeedError, OptionError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, advice_for, join, write_file
from trainer.checkpointing.listing import checkpoints_directory, kinds
from trainer.checkpointing.tensorstore_specs import prepare_orbax
from trainer.config import TrainerConfig
from trainer.reports.workdir import STEP_METADATA

# ruff: noqa: D102 (the methods are those of epath.Path)


def orbax_path(path: str) -> epath.Path:
    """The path as Orbax expects it. Raises OptionError for one that Orbax takes for another."""
    remote = is_remote(path)
    place = BucketPath(path) if remote else LocalPath(path).absolute()
    if wrong := re.search(r"[#?]|(?<=.)gs:/" if remote else r"\\|gs:/", str(place)):
        raise OptionError(
            f"{place} has {wrong[0]} in its name, with which Orbax would use another directory for "
            "arrays. Choose another name."
        )
    if not remote:
        return place
    prepare_orbax(path)
    return place


def fenced_path(workdir: str, fence: Callable[[], None]) -> type[Any]:
    """Orbax's temporary path for this directory; calls the fence just before publishing, in the
    writing thread."""
    from orbax.checkpoint.path import atomicity  # loads jax, which tools do without

    kind: Any = (
        atomicity.CommitFileTemporaryPath
        if is_remote(workdir)
        else atomicity.AtomicRenameTemporaryPath
    )

    class Fenced(kind):
        async def finalize(self) -> None:
            fence()
            await super().finalize()

    return Fenced


def check_directory(workdir: str) -> None:
    """Raises CheckpointError for a directory that has a number for its name but is no checkpoint:
    Orbax would take it for one, and remove it."""
    for name, kind in kinds(workdir).items():
        if kind == "other" and name.isdecimal():
            raise CheckpointError(
                f"{join(checkpoints_directory(workdir), name)} has the name of a checkpoint, but "
                "is none. Move it, or give another workdir."
            )


def remove_unfinished(workdir: str) -> None:
    """Removes unfinished checkpoints. A process that still writes one finds nothing to publish."""
    for name, kind in kinds(workdir).items():
        path = join(checkpoints_directory(workdir), name)
        if kind == "unfinished" and is_remote(workdir):
            orbax_path(path).rmtree()
        elif kind == "unfinished":
            # fails while the directory is written to; the fence stops that writer
            shutil.rmtree(path, ignore_errors=True)


@epath.register_path_cls
class LocalPath(PosixGPath):
    """A file or directory on a disk, which may have brackets in its name."""

    def glob(self, pattern: str) -> Iterator["LocalPath"]:
        return (self / path for path in Path(self).glob(pattern))


@epath.register_path_cls
class BucketPath(epath.Path):
    """A file or directory by its full path, such as gs://bucket/dir. Has those methods of
    epath.Path that Orbax calls.

    A directory is a common prefix; an empty one is an object whose name ends in a slash, as in
    Google's own tools."""

    @property
    def _storage(self) -> Storage:
        return open_storage(str(self))

    def __str__(self) -> str:
        scheme, *rest = self.parts  # a pure path drops the second slash of gs://
        return f"{scheme}//{'/'.join(rest)}"

    def __fspath__(self) -> str:
        return str(self)

    def is_absolute(self) -> bool:
        return True

    def resolve(self, strict: bool = False) -> "BucketPath":
        return self

    def exists(self) -> bool:
        return self._storage.exists(str(self))

    def is_dir(self) -> bool:
        return self._storage.exists(f"{self}/")

    def iterdir(self) -> Iterator["BucketPath"]:
        files, directories = self._storage.entries(str(self))
        for name in (*files, *directories):
            yield self / name

    def glob(self, pattern: str) -> Iterator["BucketPath"]:
        # Not path.match: on Python 3.12 it takes the pattern for a path, which is longer with our
        # __str__.
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def read_bytes(self) -> bytes:
        return self._storage.read(str(self))

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: bytes) -> int:
        write_file(self._storage, str(self), data)
        return len(data)

    def write_text(self, data: str, encoding: str | None = None, errors: str | None = None) -> int:
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        if not self._storage.create(f"{self}/", b"") and not exist_ok:
            raise FileExistsError(f"{self} already exists.")

    def rmtree(self, missing_ok: bool = False) -> None:
        # never an error: a retry finds less to remove
        files, directories = self._storage.entries(str(self))
        # The mark of a finished checkpoint goes first: if killed, it counts as unfinished, and as
        # ours until the end.
        for name in files:
            if name != STEP_METADATA:
                (self / name).unlink()
        for name in directories:
            (self / name).rmtree()
        (self / STEP_METADATA).unlink()
        self._storage.delete(f"{self}/")

    def unlink(self, missing_ok: bool = False) -> None:
        self._storage.delete(str(self))


def reason(error: BaseException, advice: str = "") -> str:
    """The first line of the original error, without the settings that tensorstore appends.

    Ends with the HTTP status if there is one, which is not a sign of damage, else with `advice`; by
    default that for the operating system's error."""
    while error.__cause__:  # Orbax's own text is a page of tensorstore's settings
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    line = re.split(r" \[\w+(?:\[\d+\])?='", text.split("\n", 1)[0], maxsplit=1)[0]
    if len(line) > 600:  # paths first, the cause last
        line = f"{line[:200]} ... {line[-400:]}"
    if status := re.search(r"\[http_response_code='(\d+)'\]", text):
        return f"status {status[1]}: {line}"
    advice = advice or f" {advice_for(line)}".rstrip()
    return f"{line.removesuffix('.')}.{advice}" if advice else line


@contextmanager
def as_checkpoint_error(
    action: str, path: str, work_seconds: float | None = None, advice: str = ""
) -> Iterator[None]:
    """Raises CheckpointError("cannot <action> <path>: <reason>") for errors of the block that are
    not ours."""
    import jax  # tools that only read checkpoints do without it

    try:
        yield
    # of a collective, which another host may have left
    except (InfeedError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # OSError, ValueError, errors of tensorstore
        why = reason(error, advice)
        if work_seconds and isinstance(error, TimeoutError):  # Orbax raises it for its AsyncOptions
            why = f"it has not finished after {work_seconds:g} s (work_seconds)."
        raise CheckpointError(f"cannot {action} {path}: {why}") from error


def barrier_of(config: TrainerConfig) -> Callable[..., None]:
    """How Orbax's threads wait for those of other hosts: as long as these may work before they
    save.

    One that is stuck is found all the same."""
    from orbax.checkpoint import multihost  # loads jax, which tools do without

    wait = multihost.get_barrier_sync_fn()
    most = math.ceil(1000 * (2 * config.work_seconds + config.stall_seconds))
    return lambda *, key, timeout_ms: wait(key=key, timeout_ms=max(timeout_ms, most))
