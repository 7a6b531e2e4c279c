"""How a job reaches its workers: as bytes in the graph of the runner, or in a file that they read.

Each stage of a graph has all that its function is given, and Dataflow takes graphs up to 20 MB,
which 40,000 sources exceed. So a job that is not small is a file in <output>/_scratch, and its
stages have the path and a digest. The commit removes the file."""

import functools
import hashlib
import pickle
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from beam_jobs.converter import ConversionJob
from pipeline.errors import ConversionError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import in_parallel, join, read_file, write_file

_SMALL_BYTES = 1 << 15  # a dozen stages, in base64, take less than 1 MB
_LEVEL = 1  # of zlib
_FILE = re.compile(r"(?P<split>.+)\.[0-9a-f]{32}-job")
_OF_RUN: Mapping[str, Any] = {"run_id": "", "started": 0.0, "local_processes": 1}


@dataclass(frozen=True)
class StoredJob:
    """A job for workers.

    data: the pickled job if it is small.
    path, digest: of the file that has it otherwise. The same command has the same file, whichever
        run it is.
    of_run: the fields of this run."""

    data: bytes
    path: str
    digest: str
    of_run: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(job: ConversionJob) -> "StoredJob":
        """Writes the file, unless the job is small or a dry run. Raises StorageError."""
        of_run = {name: getattr(job, name) for name in _OF_RUN}
        same = replace(job, **_OF_RUN)
        data = zlib.compress(pickle.dumps(same, pickle.HIGHEST_PROTOCOL), _LEVEL)
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        path = job.path(f"_scratch/{job.splits[0]}.{digest}-job")
        if not job.dry_run and len(data) > _SMALL_BYTES:
            write_file(job.output, path, data)
            data = b""
        return StoredJob(data, path, digest, tuple(of_run.items()))

    @property
    def job(self) -> Any:
        """The job, of which all stages in a process have one copy. Raises ConversionError if its
        file is missing or damaged."""
        return _job(self)

    @property
    def is_removed(self) -> bool:
        """Whether it had a file, which is no longer there."""
        return not self.data and not open_storage(self.path).exists(self.path)

    def remove(self) -> None:
        """Removes its file, if it has one. Raises StorageError."""
        if not self.data:
            open_storage(self.path).delete(self.path)


@functools.lru_cache(maxsize=2)
def _job(stored: StoredJob) -> Any:
    data = stored.data or read_file(open_storage(stored.path), stored.path) or b""
    if hashlib.blake2b(data, digest_size=16).hexdigest() != stored.digest:
        state = "damaged" if data else "missing"
        raise ConversionError(
            f"{stored.path}, which lists the raw data, is {state}. If another conversion writes to "
            "this directory, wait for its end. Then run the same command again."
        )
    return replace(pickle.loads(zlib.decompress(data)), **dict(stored.of_run))


def remove_stored_jobs(job: ConversionJob) -> None:
    """Removes the files of jobs of these splits, also those that killed launchers left. Raises
    StorageError."""
    directory = job.path("_scratch")
    job.output.sweep(directory, [f"{split}.*-job" for split in job.splits])
    matches = filter(None, map(_FILE.fullmatch, job.output.list(directory)))
    names = [match[0] for match in matches if match["split"] in job.splits]
    in_parallel(job.output.delete, [join(directory, name) for name in names])
