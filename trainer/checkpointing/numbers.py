"""Reads and verifies the values of an array in a checkpoint, for tools. Needs no jax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.checkpointing.listing import check_files
from trainer.checkpointing.orbax_paths import TENSORSTORE_RETRIES, bound_stalls, reason
from trainer.workdir import STATE

PLACE, MIX, SHIFTS = 0x9E3779B1, 0x85EBCA6B, (15, 13)  # as in common integer hashes
AT_ONCE = 2**16  # words, which stay in a core's cache


def summed(words: np.ndarray) -> int:
    """The sum of uint32 words, each mixed with its place, mod 2**32: of other words, or in other places, it is another.

    Unlike a CRC, it can be added up on the devices that hold the parts of an array, however that is split."""
    words, total = words.reshape(-1), 0
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
    """Whether it is one of JAX's types of 8 bits or less, whose bits NumPy and JAX store in different ways."""
    return dtype.itemsize == 1 and dtype.kind not in "biu"


def array_sum(numbers: np.ndarray) -> int:
    """The sum of an array's numbers that a checkpoint lists."""
    numbers = numbers.astype(np.float32) if is_tiny(numbers.dtype) else numbers
    wide = min(numbers.dtype.itemsize, 4)
    return summed(np.ascontiguousarray(numbers).reshape(-1).view(f"<u{wide}").astype(np.uint32, copy=False))


def read_array(directory: str, name: str, listed: Mapping[str, Any]) -> np.ndarray:
    """All values of the array `name`, from the directory of a step.

    Raises CheckpointError if they cannot be read or do not match `listed`, the array's entry in the contents."""
    state = join(directory, STATE)
    check_files(open_storage(state), state)
    try:
        numbers = _read(state, name)
    except Exception as error:  # tensorstore raises many kinds
        raise CheckpointError(f"cannot read {name} of {state}: {reason(error)}") from error
    if array_sum(numbers) != listed["sum"]:
        raise CheckpointError(f"{name} of {state} is damaged: it does not have the values that were saved.")
    return numbers


def _read(state: str, name: str) -> np.ndarray:
    import tensorstore  # takes 0.2 s, which listing does without

    bound_stalls()
    context = tensorstore.Context({"gcs_request_retries": TENSORSTORE_RETRIES})
    base = {"driver": "file", "path": f"{Path(state).absolute()}/"}
    if is_remote(state):
        bucket, _, path = state.partition("://")[2].partition("/")
        base = {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}
    store = {"driver": "ocdbt", "base": base}
    keys = tensorstore.KvStore.open(store, context=context).result().list().result()
    # Orbax joins the keys of a path with dots, we join them with slashes; a key may contain either.
    stored = {key.removesuffix("/.zarray") for key in map(bytes.decode, keys) if key.endswith("/.zarray")}
    path = {each.replace("/", "."): each for each in stored}[name.replace("/", ".")]
    spec = {"driver": "zarr", "kvstore": store | {"path": f"{path}/"}}
    return tensorstore.open(spec, context=context).result().read().result()
