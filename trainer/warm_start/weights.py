"""The arrays of a checkpoint by name, whatever wrote it. The format follows from the files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.errors import CheckpointError, OptionError, StorageError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join
from trainer.checkpointing.contents import contents_path
from trainer.checkpointing.listing import checkpoints_directory, finished_steps, required_step
from trainer.warm_start.matching import Array

__all__ = ["Weights", "open_weights"]

ORBAX_METADATA = "_METADATA"
ALLOWED = (
    "Give a work directory or a checkpoint in it, a checkpoint of Orbax, a .safetensors file or a directory of them, "
    "or a TensorFlow checkpoint without its .index."
)


@dataclass(frozen=True)
class Weights:
    """The arrays of a checkpoint, and how to read one of them. path: of the checkpoint that was chosen."""

    path: str
    arrays: Mapping[str, Array]
    read: Callable[[str], np.ndarray]


def open_weights(path: str, ema: bool = True) -> Weights:
    """Lists the arrays of a checkpoint. Reads none of them yet. ema: see WarmStart.init_ema.

    Raises OptionError for a path that is not a checkpoint, CheckpointError for one that cannot be read."""
    storage, path = open_storage(path), path.rstrip("/")
    files, directories = _entries(storage, path)
    step = _step_of_ours(storage, path)
    if step:
        from trainer.warm_start.own_checkpoint import own_weights

        return own_weights(*step, ema=ema)
    if orbax := _orbax_directory(storage, path):
        from trainer.warm_start.orbax_checkpoint import orbax_weights

        return orbax_weights(orbax)
    if path.endswith(".safetensors") or any(name.endswith(".safetensors") for name in files):
        from trainer.warm_start.safetensors_files import safetensors_weights

        names = [path] if not files else [join(path, name) for name in sorted(files) if name.endswith(".safetensors")]
        return safetensors_weights(_local(path), names)
    if "checkpoint" in files or storage.exists(f"{path}.index"):
        from trainer.warm_start.tf_checkpoint import tf_weights

        return tf_weights(_local(path))
    there = f"is none that infeed can read (it has: {', '.join(sorted((*files, *directories))[:8])})"
    raise OptionError(f"init_from={path!r} {there if files or directories else 'is not a checkpoint'}. {ALLOWED}")


def _entries(storage: Storage, path: str) -> tuple[list[str], list[str]]:
    try:
        files, directories = storage.entries(path)
    except StorageError:  # a file, or nothing
        return [], []
    return list(files), list(directories)


def _step_of_ours(storage: Storage, path: str) -> tuple[str, int] | None:
    """The directory of checkpoints and the step, if the path is a work directory of ours or one of its checkpoints."""
    directory, _, name = path.rpartition("/")
    if name.isdecimal() and storage.exists(contents_path(directory or ".", int(name))):
        return directory or ".", int(name)
    directory = checkpoints_directory(path)
    steps = finished_steps(path)
    if steps and storage.exists(contents_path(directory, steps[-1])):
        return directory, required_step(directory, steps, None)
    return None


def _orbax_directory(storage: Storage, path: str) -> str | None:
    """The directory of the arrays: this one, the only item in it, or that of the newest step in it."""
    files, directories = _entries(storage, path)
    if ORBAX_METADATA in files:
        return path
    items = [name for name in directories if storage.exists(join(path, f"{name}/{ORBAX_METADATA}"))]
    if len(items) > 1:
        raise OptionError(f"init_from={path!r} has several items: {', '.join(sorted(items))}. Give the path of one.")
    if items:
        return join(path, items[0])
    steps = sorted((name for name in directories if name.isdecimal()), key=int)
    return _orbax_directory(storage, join(path, steps[-1])) if steps else None


def _local(path: str) -> str:
    if is_remote(path):
        raise CheckpointError(
            f"init_from={path!r}: only checkpoints of infeed and Orbax are read from a bucket. Copy it to a disk."
        )
    return path
