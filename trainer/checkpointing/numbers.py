"""Reads and verifies the values of an array in a checkpoint, for tools. Needs no jax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from pipeline.errors import CheckpointError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.checkpointing.listing import check_files
from trainer.checkpointing.orbax_paths import TENSORSTORE_RETRIES, bound_stalls, reason
from trainer.workdir import STATE

AT_ONCE = 2**22  # bytes: no other thread runs meanwhile, for about a millisecond


def part_crc(numbers: np.ndarray, number: int) -> int:
    """crc32c of the bytes of an array's part and of the part's number, so that swapped parts count as damage."""
    octets: Any = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, len(octets), AT_ONCE):
        crc = google_crc32c.extend(crc, octets[start : start + AT_ONCE])
    return google_crc32c.extend(crc, number.to_bytes(8, "little"))


def read_array(directory: str, name: str, listed: Mapping[str, Any]) -> np.ndarray:
    """All values of the array `name`, from the directory of a step.

    Raises CheckpointError if they cannot be read or do not match `listed`, the array's entry in the contents."""
    state = join(directory, STATE)
    check_files(open_storage(state), state)
    try:
        numbers = _read(state, name)
    except Exception as error:  # tensorstore raises many kinds
        raise CheckpointError(f"cannot read {name} of {state}: {reason(error)}") from error
    parts = [size // count for size, count in zip(listed["shape"], listed["cut"], strict=True)]
    total = 0
    for number, cell in enumerate(np.ndindex(*listed["cut"])) if numbers.size else ():
        where = tuple(slice(i * size, (i + 1) * size) for i, size in zip(cell, parts, strict=True))
        total += part_crc(numbers[where], number)
    if total % 2**32 != listed["sum"]:
        raise CheckpointError(f"{name} of {state} is damaged: it does not have the values that were saved.")
    return numbers


def _read(state: str, name: str) -> np.ndarray:
    import tensorstore  # takes 0.2 s, which listing does without

    bound_stalls()
    context = tensorstore.Context({"gcs_request_retries": TENSORSTORE_RETRIES})
    store = {"driver": "ocdbt", "base": _place(state)}
    keys = tensorstore.KvStore.open(store, context=context).result().list().result()
    # Orbax joins the keys of a path with dots, we join them with slashes; a key may contain either.
    stored = {key.removesuffix("/.zarray") for key in map(bytes.decode, keys) if key.endswith("/.zarray")}
    path = {each.replace("/", "."): each for each in stored}[name.replace("/", ".")]
    spec = {"driver": "zarr", "kvstore": store | {"path": f"{path}/"}}
    return tensorstore.open(spec, context=context).result().read().result()


def _place(directory: str) -> dict[str, str]:
    if is_remote(directory):
        bucket, _, path = directory.partition("://")[2].partition("/")
        return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}
    return {"driver": "file", "path": f"{Path(directory).absolute()}/"}
