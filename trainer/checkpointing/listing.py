"""Which checkpoints a work directory has, by looking at the names in it.

For the trainer, for who follows a run, and for tools: without jax, devices or other hosts, and it makes nothing."""

from collections.abc import Sequence

from pipeline.shards.errors import CheckpointError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Storage, in_parallel, join

__all__ = ["checkpoint_bytes", "checkpoints_directory", "finished_steps", "required_step"]

# Orbax's last word in a bucket, which cannot rename. On a disk it renames, so there the name alone says it.
_LAST_WORD = "commit_success.txt"


def checkpoints_directory(workdir: str) -> str:
    """Where in a work directory they are."""
    return join(str(workdir), "checkpoints")


def finished_steps(workdir: str) -> list[int]:
    """Steps of the finished checkpoints, ascending. What is still being written, or was when it was killed, is none."""
    storage, directory = open_storage(workdir), checkpoints_directory(workdir)
    # Also without a checkpoint this asks for the bucket: of one that is missing or closed, the error says so.
    if not storage.exists(directory):
        return []
    names = [name for name in storage.entries(directory)[1] if name.isdecimal() and name == str(int(name))]
    if storage.remote:
        words = in_parallel(storage.exists, [join(directory, f"{name}/{_LAST_WORD}") for name in names])
        names = [name for name, finished in zip(names, words, strict=True) if finished]
    return sorted(map(int, names))


def required_step(directory: str, steps: Sequence[int], step: int | None) -> int:
    """`step`, or the newest of the `steps` there are. CheckpointError, listing these, where it is missing."""
    if not steps:
        raise CheckpointError(f"{directory} has no checkpoint. Train first, or give the right workdir.")
    if step is not None and step not in steps:
        raise CheckpointError(f"{directory} has no checkpoint of step {step}. It has: {steps}.")
    return steps[-1] if step is None else step


def checkpoint_bytes(storage: Storage, directory: str) -> int:
    """The size of all files at and below a directory."""
    files, directories = storage.entries(directory)
    below = in_parallel(lambda name: checkpoint_bytes(storage, join(directory, name)), directories)
    return sum(stat.bytes for stat in files.values()) + sum(below)
