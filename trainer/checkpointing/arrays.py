"""What a checkpoint contains, the list of its arrays, and two checks against it: same model, and undamaged.

Neither Orbax nor its array store has checksums: a flipped bit in a stored array changes values without an error.
Computed from the devices' arrays, ours also cover the transfers to storage and back."""

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from pipeline.errors import CheckpointError
from pipeline.logs import logger
from trainer.batch_spec import named_leaves
from trainer.checkpointing.contents import METADATA, changes, versions
from trainer.checkpointing.numbers import part_crc
from trainer.cluster.exchange import LOOK_SECONDS
from trainer.cluster.store import open_store
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
    """Maps each array's name to its dtype, shape, partition (as text) and cut."""
    return {
        name: {
            "dtype": str(leaf.dtype),
            "shape": list(leaf.shape),
            "partition": str(getattr(leaf.sharding, "spec", "")),
            "cut": cut_of(leaf),
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


def check_numbers(path: str, listed: Listed, state: Any, seconds: float = math.inf) -> None:
    """Raises CheckpointError, which names the arrays, if restored values differ from the saved ones.

    seconds: how long to wait for other hosts."""
    sums = array_sums(state, {name: array["cut"] for name, array in listed.items()}, seconds)
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


def array_sums(
    state: Any, cuts: Mapping[str, Sequence[int]] | None = None, seconds: float = math.inf
) -> dict[str, int | None]:
    """Maps each array's name to the sum of its parts' crc32c, mod 2**32; the same on all hosts. See ArraySums."""
    return ArraySums(state, cuts)(seconds)


class ArraySums:
    """The numbers of a state, copied from the devices; calling it computes the sums, at about 4 GB/s, in any thread.

    Orbax needs the same copies and finds them made, so training waits for them once. All hosts make the same ones, in
    the same order. cuts: those of the sums to compare with; default: the arrays' own."""

    _made = itertools.count()

    def __init__(self, state: Any, cuts: Mapping[str, Sequence[int]] | None = None) -> None:
        self._key = f"sums/{next(self._made)}"
        leaves = named_leaves(state).items()
        parts = {name: _parts_here(leaf, cuts[name] if cuts else cut_of(leaf)) for name, leaf in leaves}
        for data, *_ in itertools.chain.from_iterable(found or () for found in parts.values()):
            data.copy_to_host_async()
        self._parts = {
            name: None if found is None else [(np.asarray(data)[where], number) for data, where, number in found]
            for name, found in parts.items()
        }

    def __call__(self, seconds: float) -> dict[str, int | None]:
        """Maps each array's name to the sum of its parts' crc32c, mod 2**32, on all hosts. None for an array with a
        part that no device holds completely, as it is now split more finely or along other axes.

        TimeoutError if another host has not computed its own within `seconds`."""
        here = {
            name: None if parts is None else sum(itertools.starmap(part_crc, parts)) % 2**32
            for name, parts in self._parts.items()
        }
        self._parts.clear()  # gigabytes
        if (store := open_store()).count == 1:
            return here
        store.put(f"{self._key}/{store.index}", json.dumps(here))
        end = time.monotonic() + seconds
        while len(of_hosts := store.by_host(self._key)) < store.count:
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(LOOK_SECONDS)
        hosts = [json.loads(told) for told in of_hosts.values()]
        return {
            name: None if value is None else sum(host[name] for host in hosts) % 2**32 for name, value in here.items()
        }


def _parts_here(array: jax.Array, cut: Sequence[int]) -> list[tuple[jax.Array, tuple[slice, ...], int]] | None:
    """The parts that this host counts, as data on a device, slices of it and a number: the first device that holds a
    part counts it. None if no device holds all of some part."""
    holders: dict[tuple[int, ...], Any] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(tuple(axis.indices(size)[0] for axis, size in zip(index, array.shape, strict=True)), device)
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    held = array.sharding.shard_shape(array.shape)
    part = [size // count for size, count in zip(array.shape, cut, strict=True)]
    parts = []
    for number, cell in enumerate(np.ndindex(*cut)) if array.size else ():
        inside = [i * size % whole for i, size, whole in zip(cell, part, held, strict=True)]
        if any(at + size > whole for at, size, whole in zip(inside, part, held, strict=True)):
            return None
        corner = tuple(i * size - at for i, size, at in zip(cell, part, inside, strict=True))
        if (data := shards.get(holders[corner])) is not None:
            parts.append((_plain(data), tuple(map(slice, inside, np.add(inside, part))), number))
    return parts


def _plain(data: jax.Array) -> jax.Array:
    return jax.random.key_data(data) if jnp.issubdtype(data.dtype, jax.dtypes.prng_key) else data


class ContentsHandler(ocp.JsonCheckpointHandler):
    """Makes the description of a checkpoint and writes it while Orbax writes the arrays."""

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Future]:
        """Starts a thread for it."""
        del item

        async def write() -> None:
            page = args.contents()
            if jax.process_index() == 0:
                (directory / METADATA).write_text(json.dumps(page))

        return [CommitFutureAwaitingContractedSignals(write(), name="contents")]


@ocp.args.register_with_handler(ContentsHandler, for_save=True, for_restore=True)  # Orbax asks for both
@dataclass
class ContentsSave(ocp.args.CheckpointArgs):
    """contents: makes the description, in a thread of its own on every host. If it raises, there is no checkpoint."""

    contents: Callable[[], Mapping[str, Any]]
