"""Checksums of a state's values, to verify that a restored state is the saved one.

Neither Orbax nor its array store has any: a flipped bit in a stored array changes values without an error. Computed
from the devices' arrays, they also cover the transfers to storage and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from trainer.batch_spec import named_leaves
from trainer.checkpointing.numbers import part_crc

__all__ = ["array_sums", "cut_of"]


def cut_of(array: jax.Array) -> list[int]:
    """Number of parts of the array along each axis; all 1 if every device holds a complete copy."""
    indices = array.sharding.devices_indices_map(array.shape).values()
    return [len({index[axis].indices(size)[0] for index in indices}) for axis, size in enumerate(array.shape)]


def array_sums(state: Any, cuts: Mapping[str, Sequence[int]] | None = None) -> dict[str, int | None]:
    """Maps each array's name to the sum of its parts' crc32c, mod 2**32; the same on all hosts. A collective.

    cuts: those of the sums to compare with; default: the arrays' own. None for an array with a part that no device
    holds completely, as it is now split more finely or along other axes. Runs at about 4 GB/s, plus the copy from the
    device, which writing needs anyway."""
    leaves = named_leaves(state).items()
    sums = {name: _sum_here(leaf, cuts[name] if cuts else cut_of(leaf)) for name, leaf in leaves}
    known = [name for name, value in sums.items() if value is not None]
    if jax.process_count() > 1 and known:
        of_hosts = multihost_utils.process_allgather(np.array([sums[name] for name in known], np.uint32))
        sums |= dict(zip(known, (of_hosts.sum(axis=0, dtype=np.uint64) % 2**32).tolist(), strict=True))
    return sums


def _sum_here(array: jax.Array, cut: Sequence[int]) -> int | None:
    """The sum over the parts that this host counts: the first device that holds a part counts it."""
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
