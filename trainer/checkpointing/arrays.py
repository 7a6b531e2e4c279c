"""What a checkpoint contains, the list of its arrays, and two checks against it: same model, and undamaged.

Neither Orbax nor its array store has checksums: a flipped bit in a stored array changes values without an error.
Computed from the devices' arrays, ours also cover the transfers to storage and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from pipeline.errors import CheckpointError
from pipeline.logs import logger
from trainer.batch_spec import named_leaves
from trainer.checkpointing.contents import changes, versions
from trainer.checkpointing.numbers import part_crc
from trainer.state import TrainState

log = logger("trainer")

EMA = "ema/"  # in the names of averaged parameters

Listed = Mapping[str, Mapping[str, Any]]  # name -> dtype, shape, partition, cut, sum


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was saved. `CheckpointManager` fills in versions and mesh.

    productive_seconds: see Goodput. run: that saved it, as segments.jsonl names it. None: unknown."""

    step: int
    state: TrainState
    input_state: dict[str, Any]
    config: dict[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    mesh: Mapping[str, Any] = field(default_factory=dict)
    productive_seconds: float | None = None
    run: str | None = None

    def changes(self, config: Mapping[str, Any]) -> list[str]:
        """A text for each setting, version and device count that differs from when this was saved."""
        now = ((self.config, config), (self.versions, versions()), (self.mesh, mesh_of(self.state)))
        return [text for then, this in now for text in changes(then, this)]


def list_arrays(state: Any) -> dict[str, dict[str, Any]]:
    """Maps each array's name to its dtype, shape, partition (as text), cut and sum. A collective."""
    sums = array_sums(state)
    return {
        name: {
            "dtype": str(leaf.dtype),
            "shape": list(leaf.shape),
            "partition": str(getattr(leaf.sharding, "spec", "")),
            "cut": cut_of(leaf),
            "sum": sums[name],
        }
        for name, leaf in named_leaves(state).items()
    }


def mesh_of(state: Any) -> dict[str, Any]:
    """Describes the devices of a state: sizes of the mesh's axes, kind of device, number of processes."""
    sharding = jax.tree.leaves(state)[0].sharding
    axes = dict(sharding.mesh.shape) if isinstance(sharding, jax.sharding.NamedSharding) else {}
    kind = next(iter(sharding.device_set)).device_kind
    return {**axes, "device": kind, "processes": jax.process_count()}


def check_model(path: str, listed: Listed, like: Any) -> None:
    """Raises CheckpointError, which names an array, unless `like` has the same names, dtypes and shapes."""
    saved = {name: f"{array['dtype']} {array['shape']}" for name, array in listed.items()}
    wanted = {name: f"{leaf.dtype} {list(leaf.shape)}" for name, leaf in named_leaves(like).items()}
    averages = [any(name.startswith(EMA) for name in names) for names in (saved, wanted)]
    if averages == [True, False]:
        raise CheckpointError(
            f"{path} has averaged parameters, this run has none. Give the ema_decay that it was trained with, or "
            "another workdir."
        )
    if averages == [False, True]:
        raise CheckpointError(f"{path} has no averaged parameters. Leave out ema_decay, or give another workdir.")
    # The model first: users know its arrays better than the optimizer's.
    for name in sorted(saved.keys() | wanted.keys(), key=lambda name: (name.startswith("optimizer"), name)):
        if saved.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path} belongs to another model or optimizer: {name} is {saved.get(name, 'missing')} there "
                f"and {wanted.get(name, 'missing')} in this task. Use the task and the flags it was trained with, or "
                "another workdir."
            )


def check_numbers(path: str, listed: Listed, state: Any) -> None:
    """Raises CheckpointError, which names the arrays, if restored values differ from the saved ones."""
    sums = array_sums(state, {name: array["cut"] for name, array in listed.items()})
    wrong = [name for name, value in sums.items() if value not in (None, listed[name]["sum"])]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(
            f"{path} is damaged: restored values of {', '.join(wrong[:3])}{more} differ from saved ones."
        )
    if unproven := sum(value is None for value in sums.values()):
        log.info("%d of %d arrays could not be verified: they are now split differently", unproven, len(sums))


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
