"""Reads and verifies checkpoints without JAX, for tools: the description of a checkpoint, a JSON
file next to the arrays with its own checksum, and the values of an array."""

import json
import math
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import CheckpointError, InfeedError, StorageError
from pipeline.packages import version_of
from pipeline.shards.typed_json import JsonFile, read_sealed
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join
from trainer.checkpointing.listing import check_files
from trainer.checkpointing.orbax_paths import orbax_path, reason
from trainer.checkpointing.tensorstore_specs import bounds, kvstore
from trainer.reports.workdir import CONTENTS, ITEM_METADATA, STATE

METADATA = "metadata"
_REMEDY = "It is damaged: copy the checkpoint again, or resume from another step."
_PIXELS = ("opencv-python-headless", "simplejpeg", "pillow")
_PACKAGES = ("infeed", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy", *_PIXELS)
# as in common integer hashes
PLACE = 0x9E3779B1
MIX = 0x85EBCA6B
SHIFTS = (15, 13)
AT_ONCE = 2**16  # words, which stay in a core's cache


def versions() -> dict[str, str]:
    """Versions of Python and of all libraries that affect the values of a training run."""
    return {"python": platform.python_version()} | {
        name: version_of(name) or "unknown" for name in _PACKAGES
    }


def contents_path(directory: str, step: int) -> str:
    """The file with the contents of a step, in a directory of checkpoints."""
    return join(directory, f"{step}/{CONTENTS}/{METADATA}")


def read_contents(storage: Storage, directory: str, step: int) -> dict[str, Any]:
    """The contents of a step. Raises CheckpointError, which names the file, if it is missing or
    damaged."""
    path = contents_path(directory, step)
    try:
        data = storage.read(path)
    except StorageError as error:
        if storage.exists(path):
            raise
        raise CheckpointError(
            f"{path} is missing: the checkpoint is damaged, or another program wrote it."
        ) from error
    return read_sealed(JsonFile(path, CheckpointError, _REMEDY), data, dict[str, Any])


def check_tree(storage: Storage, directory: str, listed: Iterable[str] = ()) -> None:
    """Checks the description of the arrays in a directory of Orbax, whose own errors do not name
    the file.

    listed: names of arrays that it must have. Raises CheckpointError if it lacks one, is missing or
    is damaged."""
    path = join(directory, ITEM_METADATA)
    if not storage.exists(path):
        raise CheckpointError(f"{path} is missing: the checkpoint is damaged.")
    file = JsonFile(path, CheckpointError, _REMEDY)
    try:
        names = set[str]()
        for leaf in file.parse(storage.read(path))["tree_metadata"].values():
            keys = [key["key"] for key in leaf["key_metadata"]]
            names.add(".".join(keys).replace("/", "."))
    except (AttributeError, KeyError, TypeError) as error:
        raise file.misfit("it does not describe a tree of arrays.") from error
    for name in listed:
        if name.replace("/", ".") not in names:  # Orbax joins with dots
            raise file.misfit(f"it lacks {name}, which the checkpoint has.")


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A text "name then -> now" for each value that changed."""
    now = json.loads(json.dumps(now))
    return [
        f"{name} {then.get(name)!r} -> {now[name]!r}" for name in now if then.get(name) != now[name]
    ]


def summed(words: np.ndarray) -> int:
    """The sum of uint32 words, each mixed with its place, mod 2**32: of other words, or in other
    places, it is another.

    Unlike a CRC, it can be added up on the devices that hold the parts of an array, however that is
    split."""
    words = words.reshape(-1)
    total = 0
    place = np.arange(AT_ONCE, dtype=np.uint32) * np.uint32(PLACE)
    for start in range(0, len(words), AT_ONCE):
        part = words[start : start + AT_ONCE]
        mixed = part + place[: len(part)]
        mixed += np.uint32(start * PLACE % 2**32)
        mixed ^= mixed >> SHIFTS[0]
        mixed *= np.uint32(MIX)
        mixed ^= mixed >> SHIFTS[1]
        total += int(mixed.sum(dtype=np.uint64))
    return total % 2**32


def is_tiny(dtype: np.dtype) -> bool:
    """Whether it is one of JAX's types of 8 bits or less, whose bits NumPy and JAX store in
    different ways."""
    return dtype.itemsize == 1 and dtype.kind not in "biu"


def array_sum(numbers: np.ndarray) -> int:
    """The sum of an array's numbers that a checkpoint lists."""
    if is_tiny(numbers.dtype):
        numbers = numbers.astype(np.float32)
    words = np.ascontiguousarray(numbers).reshape(-1).view(f"<u{min(numbers.dtype.itemsize, 4)}")
    return summed(words.astype(np.uint32, copy=False))


def read_array(directory: str, name: str, listed: Mapping[str, Any]) -> np.ndarray:
    """All values of the array `name`, from the directory of a step.

    Raises CheckpointError if they cannot be read or do not match `listed`, the array's entry in the
    contents."""
    state = join(directory, STATE)
    check_files(open_storage(state), state)
    try:
        numbers = _read(state, name)
    except Exception as error:  # tensorstore raises many kinds
        raise CheckpointError(f"cannot read {name} of {state}: {reason(error)}") from error
    if array_sum(numbers) != listed["sum"]:
        raise CheckpointError(
            f"{name} of {state} is damaged: it does not have the values that were saved."
        )
    return numbers


def read_back(storage: Storage, directory: str, step: int) -> None:
    """Reads the descriptions of a new checkpoint and its smallest array. Raises CheckpointError if
    that fails."""
    path = join(directory, str(step))
    try:
        arrays = read_contents(storage, directory, step)["arrays"]
        check_tree(storage, join(path, STATE), arrays)
        smallest = min(arrays, key=lambda name: math.prod(arrays[name]["shape"]))
        read_array(path, smallest, arrays[smallest])
    except InfeedError as error:
        raise CheckpointError(
            f"the first checkpoint cannot be read again, so this run could not resume: {error}"
        ) from error


def _read(state: str, name: str) -> np.ndarray:
    import tensorstore  # takes 0.2 s, which listing does without

    context = tensorstore.Context(bounds())
    if is_remote(state):
        base = kvstore(f"{state}/")
    else:  # it refuses ".."
        base = {"driver": "file", "path": f"{Path(orbax_path(state)).resolve()}/"}
    store = {"driver": "ocdbt", "base": base}
    keys = tensorstore.KvStore.open(store, context=context).result().list().result()
    # Orbax joins the keys of a path with dots, we join them with slashes; a key may contain either.
    stored = {
        key.removesuffix("/.zarray") for key in map(bytes.decode, keys) if key.endswith("/.zarray")
    }
    path = {each.replace("/", "."): each for each in stored}[name.replace("/", ".")]
    spec = {"driver": "zarr", "kvstore": store | {"path": f"{path}/"}}
    return tensorstore.open(spec, context=context).result().read().result()
