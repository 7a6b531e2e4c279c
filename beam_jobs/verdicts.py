"""Verdicts: how one split of one run ended, in a small JSON file that the launcher reads and removes.

If the launcher was killed or did not wait, the commit of a later run removes it."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from beam_jobs.converter import ConversionJob
from pipeline.errors import ConversionError, InfeedError, StorageError
from pipeline.shards.naming import verdict_file
from pipeline.shards.typed_json import Count, JsonFile, read_sealed, sealed_line
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join, write_file

_MEND = "It reports how a conversion ended, but is damaged. Run the same command again: it keeps the finished shards."


@dataclass(frozen=True)
class Verdict:
    """How one split of one run ended."""

    run_id: str
    split: str
    ok: bool
    message: str  # for people: totals if ok, otherwise every problem
    rejected: Count = 0
    warnings: tuple[str, ...] = ()
    at: float = field(default_factory=time.time, compare=False)  # Unix seconds

    def write(self, storage: Storage, output_dir: str) -> None:
        """Publishes the verdict."""
        path = join(output_dir, verdict_file(self.split, self.run_id))
        write_file(storage, path, sealed_line(dataclasses.asdict(self)))

    @staticmethod
    def fetch(storage: Storage, output_dir: str, split: str, run_id: str) -> "Verdict | None":
        """Returns and removes this run's verdict; None if there is none. Raises ConversionError if it is damaged.

        Never returns the verdict of another run: that run may have had another plan."""
        path = join(output_dir, verdict_file(split, run_id))
        if not storage.exists(path):
            return None
        try:
            return _read(storage, path)
        finally:
            with contextlib.suppress(InfeedError):  # some buckets forbid deletion
                storage.delete(path)


def _read(storage: Storage, path: str) -> Verdict:
    """Raises ConversionError if it is damaged."""
    return read_sealed(JsonFile(path, ConversionError, _MEND), storage.read(path), Verdict)


def sweep_verdicts(storage: Storage, job: ConversionJob, split: str) -> None:
    """Removes damaged verdicts, and those of runs that ended before this one started."""
    for name in storage.list(join(job.output_dir, "_shards")):
        if fnmatchcase(f"_shards/{name}", verdict_file(split, "*")):
            path = join(job.output_dir, f"_shards/{name}")
            with contextlib.suppress(StorageError):  # its launcher has just removed it
                with contextlib.suppress(ConversionError):  # a damaged one is removed, too
                    if _read(storage, path).at >= job.started:
                        continue
                storage.delete(path)


def buried_messages(text: str) -> list[str]:
    """Messages of InfeedErrors in the text of a runner's error, which quotes the tracebacks of its workers."""
    module = re.escape(InfeedError.__module__)  # tracebacks print it before the class name
    return re.findall(rf"^{module}\.\w+: (.*?)(?: \[while running .*\])?$", text, re.MULTILINE)


@contextlib.contextmanager
def verdict_on_error(job: ConversionJob, split: str) -> Iterator[None]:
    """Writes the message of an InfeedError as the split's verdict, because runners bury it in tracebacks."""
    try:
        yield
    except InfeedError as e:
        with contextlib.suppress(InfeedError):  # on a full disk this fails, too; the first error matters
            Verdict(job.run_id, split, ok=False, message=str(e)).write(open_storage(job.output_dir), job.output_dir)
        raise
