"""Finds the checkpoint at a path, and its format, from the names of files. Commands call it before they import JAX."""

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import OptionError, StorageError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join
from trainer.checkpointing.contents import TREE, contents_path
from trainer.checkpointing.listing import check_files, checkpoints_directory, finished_steps

__all__ = ["Found", "find_checkpoint"]

ALLOWED = (
    "Give a work directory or a checkpoint in it, a checkpoint of Orbax, a .safetensors file or a directory of them, "
    "or a TensorFlow checkpoint without its .index."
)


@dataclass(frozen=True)
class Found:
    """A checkpoint. files: those of safetensors; empty in other formats."""

    format: Literal["infeed", "orbax", "safetensors", "tensorflow"]
    path: str
    files: tuple[str, ...] = ()


def find_checkpoint(path: str) -> Found:
    """The checkpoint of init_from: the path itself, or the newest one in it. Raises OptionError if there is none."""
    storage, path = open_storage(path), path.rstrip("/")
    if step := _of_infeed(storage, path):
        return Found("infeed", step)
    if directory := _of_orbax(storage, path):
        check_files(storage, directory)
        return Found("orbax", directory)
    files, directories = _entries(storage, path)
    found, parts = None, sorted(join(path, name) for name in files if name.endswith(".safetensors"))
    if parts or (path.endswith(".safetensors") and storage.exists(path)):
        found = Found("safetensors", path, tuple(parts or [path]))
    elif "checkpoint" in files or storage.exists(f"{path}.index"):
        found = Found("tensorflow", path)
    if found and is_remote(path):
        raise OptionError(
            f"init_from={path!r} is a checkpoint of {found.format}. Only those of infeed and Orbax are read from a "
            "bucket: copy it to a disk."
        )
    if found is None:
        there = f"is none that infeed can read (it has: {', '.join(sorted((*files, *directories))[:8])})"
        raise OptionError(f"init_from={path!r} {there if files or directories else 'is not a checkpoint'}. {ALLOWED}")
    parent, _, name = path.rpartition("/")
    check_files(storage, *((path,) if files else (parent or ".", name)))
    return found


def _entries(storage: Storage, path: str) -> tuple[list[str], list[str]]:
    try:
        files, directories = storage.entries(path)
    except StorageError:  # a file, or nothing
        return [], []
    return list(files), list(directories)


def _of_infeed(storage: Storage, path: str) -> str | None:
    """The directory of a step, if the path is a work directory of infeed or one of its checkpoints."""
    directory, _, name = path.rpartition("/")
    if name.isdecimal() and storage.exists(contents_path(directory or ".", int(name))):
        return path
    directory, steps = checkpoints_directory(path), finished_steps(path)
    if steps and storage.exists(contents_path(directory, steps[-1])):
        return join(directory, str(steps[-1]))
    return None


def _of_orbax(storage: Storage, path: str) -> str | None:
    """The directory of the arrays: this one, the only item in it, or that of the newest step in it."""
    files, directories = _entries(storage, path)
    if TREE in files:
        return path
    items = [name for name in directories if storage.exists(join(path, f"{name}/{TREE}"))]
    if len(items) > 1:
        raise OptionError(f"init_from={path!r} has several items: {', '.join(sorted(items))}. Give the path of one.")
    if items:
        return join(path, items[0])
    steps = sorted((name for name in directories if name.isdecimal()), key=int)
    return _of_orbax(storage, join(path, steps[-1])) if steps else None
