"""Sends a job to its workers: as bytes in the runner's graph, or in a file that they read.

Each stage in a graph contains all arguments of its function, and Dataflow accepts graphs of up to
20 MB, which 40,000 sources exceed. A job that is not small is therefore a file in
<output>/_scratch, and its stages contain the path and a digest. Launcher and commit remove the
file."""

import functools
import hashlib
import pickle
import re
import zlib
from dataclasses import dataclass
from typing import Any

from beam_jobs.converter import ConversionJob
from beam_jobs.scratch import remove_scratch
from pipeline.errors import ConversionError
from pipeline.shards.naming import verdict_file
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import read_file, write_file

_SMALL_BYTES = 1 << 15  # a dozen stages, in base64, take less than 1 MB
_LEVEL = 1  # of zlib
_LONG_SECONDS = 7 * 86_400  # no run takes longer: its launcher was killed
_FILE = re.compile(r"job\.(\d+)\.[0-9a-f]{32}")


@dataclass(frozen=True)
class StoredJob:
    """A job for workers.

    data: the pickled job if it is small, else b"".
    path, digest: of the file that contains it otherwise.
    verdicts: the files that state how this run ended."""

    data: bytes
    path: str
    digest: str
    verdicts: tuple[str, ...]

    @staticmethod
    def of(job: ConversionJob) -> "StoredJob":
        """Writes the file, unless the job is small or a dry run. Raises StorageError."""
        data = zlib.compress(pickle.dumps(job, pickle.HIGHEST_PROTOCOL), _LEVEL)
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if not job.dry_run and len(data) > _SMALL_BYTES:
            write_file(job.output, _path(job), data)
            data = b""
        verdicts = (job.path(verdict_file(split, job.run_id)) for split in job.splits)
        return StoredJob(data, _path(job), digest, tuple(verdicts))

    @property
    def job(self) -> Any:
        """The job. All stages in a process share one copy. Raises ConversionError if its file is
        missing or damaged."""
        return _job(self)

    @property
    def is_committed(self) -> bool:
        """Whether its file is gone because this run was committed."""
        storage = open_storage(self.path)
        gone = not self.data and not storage.exists(self.path)
        return gone and all(map(storage.exists, self.verdicts))


@functools.lru_cache(maxsize=2)
def _job(stored: StoredJob) -> Any:
    data = stored.data or read_file(open_storage(stored.path), stored.path) or b""
    if hashlib.blake2b(data, digest_size=16).hexdigest() != stored.digest:
        state = "damaged" if data else "missing"
        raise ConversionError(
            f"{stored.path}, which lists the raw data, is {state}. Run the same command again."
        )
    return pickle.loads(zlib.decompress(data))


def _path(job: ConversionJob) -> str:
    return job.path(f"_scratch/job.{job.started:.0f}.{job.run_id}")


def remove_stored_job(job: ConversionJob) -> None:
    """Removes the file of a job. Raises StorageError."""
    job.output.delete(_path(job))


def remove_old_jobs(job: ConversionJob) -> None:
    """Removes the files that launchers left when they were killed, a week later. Raises
    StorageError."""

    def is_old(name: str) -> bool:
        match = _FILE.fullmatch(name)
        return bool(match) and int(match[1]) < job.started - _LONG_SECONDS

    remove_scratch(job, "job.*", is_old)
