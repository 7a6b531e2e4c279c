"""Verdicts: how one split of one run ended, in a small JSON file for the launcher, which removes it.

One that nobody asks for, because its launcher was killed or did not wait, goes with the commit of a later run."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from beam_jobs.job import Job
from pipeline.shards.errors import ConversionError, InfeedError, StorageError
from pipeline.shards.naming import verdict_file
from pipeline.shards.schemes import open_storage
from pipeline.shards.sealed import sealed_line, unsealed
from pipeline.shards.storage import Storage, join
from pipeline.shards.typed_json import Count, JsonFile

__all__ = ["Verdict", "buried_messages", "sweep_verdicts", "verdict_on_error"]

_MEND = (
    "It says how a conversion ended, and is damaged. Run the same command again: it keeps the shards that are finished."
)


@dataclass(frozen=True)
class Verdict:
    """How one split of one run ended."""

    run_id: str
    split: str
    ok: bool
    message: str  # for people: totals if ok, else all that went wrong
    rejected: Count = 0
    warnings: tuple[str, ...] = ()
    at: float = field(default_factory=time.time, compare=False)  # Unix seconds

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the verdict."""
        with storage.publish(join(output_dir, verdict_file(self.split, self.run_id))) as sink:
            sink.write(sealed_line(dataclasses.asdict(self)))

    @staticmethod
    def fetch(storage: Storage, output_dir: str, split: str, run_id: str) -> "Verdict | None":
        """The verdict of this run, which is then gone; None if it left none. Raises ConversionError if it is damaged.

        Never that of another run: it may be of another plan, which says nothing of what this one was to write."""
        path = join(output_dir, verdict_file(split, run_id))
        if not storage.exists(path):
            return None
        try:
            return _read(storage, path)
        finally:
            with contextlib.suppress(InfeedError):  # one that may not be deleted is left, and no reason to fail
                storage.delete(path)


def _read(storage: Storage, path: str) -> Verdict:
    """Raises ConversionError if it is damaged, or of an early version, without a checksum: nobody waits for that."""
    file = JsonFile(path, ConversionError, _MEND)
    fields, has_checksum = unsealed(file, storage.read(path))
    if not has_checksum:
        raise file.misfit("it has no checksum.")
    return file.typed(fields, Verdict)


def sweep_verdicts(storage: Storage, job: Job, split: str) -> None:
    """Removes the verdicts of runs that ended before this one began, and damaged ones."""
    for name in storage.list(join(job.output_dir, "_shards")):
        if fnmatchcase(f"_shards/{name}", verdict_file(split, "*")):
            path = join(job.output_dir, f"_shards/{name}")
            with contextlib.suppress(StorageError):  # its launcher was first
                if _is_of_before(storage, path, job.started):
                    storage.delete(path)


def _is_of_before(storage: Storage, path: str, started: float) -> bool:
    try:
        return _read(storage, path).at < started
    except ConversionError:
        return True


def buried_messages(text: str) -> list[str]:
    """Messages of InfeedErrors in a runner's error, which quotes the tracebacks of its workers."""
    module = re.escape(InfeedError.__module__)  # a traceback names a class by its module
    return re.findall(rf"^{module}\.\w+: (.*?)(?: \[while running .*\])?$", text, re.MULTILINE)


@contextlib.contextmanager
def verdict_on_error(job: Job, split: str) -> Iterator[None]:
    """Leaves the message of an InfeedError as the split's verdict, because runners bury it in tracebacks."""
    try:
        yield
    except InfeedError as e:
        with contextlib.suppress(InfeedError):  # a full disk takes no verdict either; the first error counts
            Verdict(job.run_id, split, ok=False, message=str(e)).write(open_storage(job.output_dir), job.output_dir)
        raise
