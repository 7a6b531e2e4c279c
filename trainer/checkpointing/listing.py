"""Lists the checkpoints of a work directory by the names in it.

For the trainer, processes that follow a run, and tools. Needs no jax, devices or other hosts; writes nothing."""

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import CheckpointError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, in_parallel, join

__all__ = [
    "CHECKPOINTS",
    "check_directory",
    "checkpoint_bytes",
    "checkpoints_directory",
    "finished_steps",
    "required_step",
    "unfinished",
]

CHECKPOINTS = "checkpoints"
# Orbax writes this last in a bucket, which cannot rename. On a disk it renames, so there the name is enough.
_LAST_WORD = "commit_success.txt"
_PARTS = frozenset({"_CHECKPOINT_METADATA", _LAST_WORD, "contents", "state"})
_STEP, _UNFINISHED = re.compile("0|[1-9][0-9]{0,18}"), re.compile(r"[0-9]+\.orbax-checkpoint-tmp")


def checkpoints_directory(workdir: str) -> str:
    """The directory of the checkpoints in a work directory."""
    return join(str(workdir), CHECKPOINTS)


def finished_steps(workdir: str) -> list[int]:
    """Steps of the finished checkpoints, ascending, without those being written or left unfinished by a kill."""
    storage, directory = open_storage(workdir), checkpoints_directory(workdir)
    # This also checks the bucket: the error reports one that is missing or inaccessible.
    if not storage.exists(directory):
        return []
    names = [name for name in storage.entries(directory)[1] if _STEP.fullmatch(name)]
    in_turn = in_parallel if storage.remote else map  # on a disk, threads would cost more than they save
    finished = in_turn(lambda name: _is_finished(storage, join(directory, name)), names)
    return sorted(int(name) for name, is_finished in zip(names, finished, strict=True) if is_finished)


def _is_finished(storage: Storage, directory: str) -> bool:
    """Whether it is a checkpoint: other directories may have a number for their name, too."""
    if storage.remote:
        return storage.exists(join(directory, _LAST_WORD))
    return not _PARTS.isdisjoint(_names(storage, directory))


def unfinished(workdir: str) -> list[str]:
    """The directories of checkpoints that are being written, or that a kill left."""
    storage, directory = open_storage(workdir), checkpoints_directory(workdir)
    finished, names = set(map(str, finished_steps(workdir))), storage.entries(directory)[1]
    if not storage.remote:
        places = [join(directory, name) for name in names if _UNFINISHED.fullmatch(name)]
        return [place for place in places if not Path(place).is_symlink()]
    places = [join(directory, name) for name in names if _STEP.fullmatch(name) and name not in finished]
    return [place for place in places if _names(storage, place) <= _PARTS]


def check_directory(workdir: str) -> None:
    """Raises CheckpointError for a directory that has a number for its name but is no checkpoint: it would be taken for
    one, and removed."""
    storage, directory = open_storage(workdir), checkpoints_directory(workdir)
    known = {*map(str, finished_steps(workdir)), *(place.rpartition("/")[2] for place in unfinished(workdir))}
    for name in storage.entries(directory)[1]:
        if name.isdecimal() and name not in known:
            raise CheckpointError(
                f"{join(directory, name)} has the name of a checkpoint, but is none. Move it, or give another workdir."
            )


def _names(storage: Storage, directory: str) -> set[str]:
    files, directories = storage.entries(directory)
    return {*files, *directories}


def required_step(directory: str, steps: Sequence[int], step: int | None) -> int:
    """Returns `step`, default the newest of `steps`. Raises CheckpointError, which lists them, if missing."""
    if not steps:
        raise CheckpointError(f"{directory} has no checkpoint. Train first, or give the right workdir.")
    if step is not None and step not in steps:
        raise CheckpointError(f"{directory} has no checkpoint of step {step}. It has: {steps}.")
    return steps[-1] if step is None else step


def checkpoint_bytes(storage: Storage, directory: str) -> int:
    """The total size of all files in and below a directory."""
    files, directories = storage.entries(directory)
    below = in_parallel(lambda name: checkpoint_bytes(storage, join(directory, name)), directories)
    return sum(stat.bytes for stat in files.values()) + sum(below)
