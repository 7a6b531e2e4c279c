"""Checksums of a state's numbers: whether what was restored is what was saved.

Neither Orbax nor its array store has one: a bit that flips in a stored array gives other numbers and no error. Taken
from the devices' arrays, so they also cover the way to the storage and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from trainer.checkpointing.numbers import part_crc
from trainer.inputs import path_name

__all__ = ["array_sums", "cut_of"]


def cut_of(array: jax.Array) -> list[int]:
    """Into how many parts the array is cut along each axis; ones where every device holds all of it."""
    indices = array.sharding.devices_indices_map(array.shape).values()
    return [len({index[axis].indices(size)[0] for index in indices}) for axis, size in enumerate(array.shape)]


def array_sums(state: Any, cuts: Mapping[str, Sequence[int]] | None = None) -> dict[str, int | None]:
    """Name of each array -> the sum of its parts' crc32c, mod 2**32; the same on all hosts. A collective.

    `cuts` are those that the sums to compare with were taken in (default: the arrays' own). None for an array of which
    a part lies on no device as a whole: it is now cut finer, or along other axes. About 4 GB/s, and the copy from the
    device, which is needed for writing anyway."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    sums = {name: _sum_here(leaf, cuts[name] if cuts else cut_of(leaf)) for name, leaf in leaves.items()}
    known = [name for name, value in sums.items() if value is not None]
    if jax.process_count() > 1 and known:
        of_hosts = multihost_utils.process_allgather(np.array([sums[name] for name in known], np.uint32))
        sums |= dict(zip(known, (of_hosts.sum(axis=0, dtype=np.uint64) % 2**32).tolist(), strict=True))
    return sums


def _sum_here(array: jax.Array, cut: Sequence[int]) -> int | None:
    """Over the parts for which this host answers: each is counted by the first device that has it."""
    holders: dict[tuple[int, ...], Any] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(tuple(axis.indices(size)[0] for axis, size in zip(index, array.shape, strict=True)), device)
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    held = array.sharding.shard_shape(array.shape)
    part = [size // count for size, count in zip(array.shape, cut, strict=True)]
    total = 0
    for number, cell in enumerate(np.ndindex(*cut)) if array.size else ():
        inside = [i * size % whole for i, size, whole in zip(cell, part, held, strict=True)]
        if any(at + size > whole for at, size, whole in zip(inside, part, held, strict=True)):
            return None
        corner = tuple(i * size - at for i, size, at in zip(cell, part, inside, strict=True))
        if (data := shards.get(holders[corner])) is not None:
            total += part_crc(_numbers(data)[tuple(map(slice, inside, np.add(inside, part)))], number)
    return total % 2**32


def _numbers(data: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(data) if jnp.issubdtype(data.dtype, jax.dtypes.prng_key) else data)
