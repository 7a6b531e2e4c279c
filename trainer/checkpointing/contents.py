"""The description of a checkpoint: a JSON file next to the arrays, with its own checksum. Tools read it without jax."""

import json
import platform
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import CheckpointError, StorageError
from pipeline.shards.typed_json import JsonFile, read_sealed
from pipeline.storage.storage import Storage, join
from pipeline.tools.program import version_of
from trainer.workdir import CONTENTS, ITEM_METADATA

METADATA = "metadata"
_REMEDY = "It is damaged: copy the checkpoint again, or resume from another step."
_PIXELS = ("opencv-python-headless", "simplejpeg", "pillow")
_PACKAGES = ("infeed", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy", *_PIXELS)


def versions() -> dict[str, str]:
    """Versions of Python and of all libraries that affect the values of a training run."""
    return {"python": platform.python_version()} | {name: version_of(name) or "unknown" for name in _PACKAGES}


def contents_path(directory: str, step: int) -> str:
    """The file with the contents of a step, in a directory of checkpoints."""
    return join(directory, f"{step}/{CONTENTS}/{METADATA}")


def read_contents(storage: Storage, directory: str, step: int) -> dict[str, Any]:
    """The contents of a step. Raises CheckpointError, which names the file, if it is missing or damaged."""
    path = contents_path(directory, step)
    try:
        data = storage.read(path)
    except StorageError as error:
        if storage.exists(path):
            raise
        raise CheckpointError(f"{path} is missing: the checkpoint is damaged, or another program wrote it.") from error
    return read_sealed(JsonFile(path, CheckpointError, _REMEDY), data, dict[str, Any])


def check_tree(storage: Storage, directory: str, listed: Iterable[str] = ()) -> None:
    """Checks the description of the arrays in a directory of Orbax, whose own errors do not name the file.

    listed: names of arrays that it must have. Raises CheckpointError if it lacks one, is missing or is damaged."""
    path = join(directory, ITEM_METADATA)
    if not storage.exists(path):
        raise CheckpointError(f"{path} is missing: the checkpoint is damaged.")
    file = JsonFile(path, CheckpointError, _REMEDY)
    try:
        leaves = file.parse(storage.read(path))["tree_metadata"].values()
        names = {".".join(key["key"] for key in leaf["key_metadata"]).replace("/", ".") for leaf in leaves}
    except (AttributeError, KeyError, TypeError) as error:
        raise file.misfit("it does not describe a tree of arrays.") from error
    if lost := [name for name in listed if name.replace("/", ".") not in names]:  # Orbax joins with dots
        raise file.misfit(f"it lacks {lost[0]}, which the checkpoint has.")


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A text "name then -> now" for each value that changed."""
    now = json.loads(json.dumps(now))
    return [f"{name} {then.get(name)!r} -> {now[name]!r}" for name in now if then.get(name) != now[name]]
