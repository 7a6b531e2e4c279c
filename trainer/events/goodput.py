"""Goodput: how much of the time since training first began in a work directory is in its newest checkpoint."""

import json
from dataclasses import dataclass

from pipeline.errors import CheckpointError
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.workdir import BEGAN

__all__ = ["Goodput", "TimeSpent", "first_began"]


@dataclass(frozen=True)
class Goodput:
    """productive_seconds: in the training loop, for the steps of the checkpoint: without compilation, evaluations and
    pauses for saving. A step that was trained, lost and trained again counts once. wall_seconds: since training first
    began in the work directory, whether or not a run was active."""

    productive_seconds: float
    wall_seconds: float

    @property
    def share(self) -> float:
        """Of the wall time that was productive, 0..1."""
        return min(1.0, self.productive_seconds / max(self.wall_seconds, 1e-9))


@dataclass(frozen=True)
class TimeSpent:
    """began: when training first began in the work directory, as time.time(); None where that is not recorded.

    earlier: productive seconds in the checkpoint that the run resumes from; None if it does not say."""

    began: float | None
    earlier: float | None

    def productive(self, seconds: float) -> float | None:
        """In total, after this many in this run."""
        return None if self.earlier is None else self.earlier + seconds

    def goodput(self, seconds: float, now: float) -> Goodput | None:
        """After this many productive seconds in this run."""
        total = self.productive(seconds)
        return None if total is None or self.began is None else Goodput(total, now - self.began)


@dataclass(frozen=True)
class _Began:
    began: float


def first_began(workdir: str, now: float) -> float:
    """When training first began in the work directory, which <workdir>/began.json records: `now` the first time.

    CheckpointError if the file is damaged."""
    storage, path = open_storage(workdir), join(workdir, BEGAN)
    if not storage.exists(path):
        storage.create(path, json.dumps({"began": now}).encode())
    file = JsonFile(path, CheckpointError, "Remove it: it only records when training first began, for the goodput.")
    return file.read(storage.read(path), _Began).began
