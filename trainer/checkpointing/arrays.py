"""What a checkpoint contains, the list of its arrays, and two checks against it: same model, and
undamaged.

Neither Orbax nor its array store has checksums: a flipped bit in a stored array changes values
without an error. Computed on the devices, ours also cover the transfers to storage and back, and
training does not wait for them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from pipeline.errors import CheckpointError
from trainer.checkpointing.contents import (
    METADATA,
    MIX,
    PLACE,
    SHIFTS,
    array_sum,
    changes,
    is_tiny,
    versions,
)
from trainer.mesh.batch_spec import named_leaves
from trainer.reports.workdir import CONTENTS, STATE
from trainer.task import TrainState

EMA = "ema/"  # in the names of averaged parameters

Listed = Mapping[str, Mapping[str, Any]]  # name -> dtype, shape, partition, sum
Sums = dict[str, int]  # of the numbers of each array


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was saved. `CheckpointManager` fills in versions and mesh.

    productive_seconds: see Goodput.
    run: that saved it, as segments.jsonl names it; None: unknown."""

    step: int
    state: TrainState
    input_state: dict[str, Any]
    config: dict[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    mesh: Mapping[str, Any] = field(default_factory=dict)
    productive_seconds: float = 0.0
    run: str | None = None

    def changes(self, config: Mapping[str, Any]) -> list[str]:
        """A text for each setting, version and device count that differs from when this was
        saved."""
        return [
            *changes(self.config, config),
            *changes(self.versions, versions()),
            *(f"mesh {each}" for each in changes(self.mesh, mesh_of(self.state))),
        ]


def list_arrays(state: Any) -> dict[str, dict[str, Any]]:
    """Maps each array's name to its dtype, shape and partition (as text)."""
    return {
        name: {
            "dtype": str(leaf.dtype),
            "shape": list(leaf.shape),
            "partition": str(getattr(leaf.sharding, "spec", "")),
        }
        for name, leaf in named_leaves(state).items()
    }


def mesh_of(state: Any) -> dict[str, Any]:
    """Describes the devices of a state: sizes of the mesh's axes, kind of device, number of
    processes."""
    sharding = jax.tree.leaves(state)[0].sharding
    axes = dict(sharding.mesh.shape) if isinstance(sharding, NamedSharding) else {}
    kind = next(iter(sharding.device_set)).device_kind
    return {**axes, "device": kind, "processes": jax.process_count()}


def check_model(path: str, listed: Listed, like: Any) -> None:
    """Raises CheckpointError, which names an array, unless `like` has the same names, dtypes and
    shapes."""
    saved = {name: f"{array['dtype']} {array['shape']}" for name, array in listed.items()}
    expected = {
        name: f"{leaf.dtype} {list(leaf.shape)}" for name, leaf in named_leaves(like).items()
    }
    saved_ema = any(name.startswith(EMA) for name in saved)
    if saved_ema != any(name.startswith(EMA) for name in expected):
        raise CheckpointError(
            f"{path} has {'' if saved_ema else 'no '}averaged parameters, unlike this run. Give or "
            "leave out ema_decay as in its training, or give another workdir."
        )
    # The model first: users know its arrays better than the optimizer's.
    for name in sorted(
        saved.keys() | expected.keys(), key=lambda name: (name.startswith("optimizer"), name)
    ):
        if saved.get(name) != expected.get(name):
            raise CheckpointError(
                f"{path} belongs to another model or optimizer: {name} is "
                f"{saved.get(name, 'missing')} there and {expected.get(name, 'missing')} in this "
                "task. Use the task and the flags it was trained with, or another workdir."
            )


def check_numbers(path: str, listed: Listed, state: Any) -> None:
    """Raises CheckpointError, which names the arrays, if restored values differ from the saved
    ones. A collective."""
    sums = begin_sums(state)()
    if wrong := [name for name, value in sums.items() if value != listed[name]["sum"]]:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(
            f"{path} is damaged: restored values of {', '.join(wrong[:3])}{more} differ from saved "
            "ones."
        )


def _plain(leaf: Array) -> Array:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def begin_sums(state: Any) -> Callable[[], Sums]:
    """Begins to compute the sum of each array, on the devices, as `array_sum` does.

    The result waits for them, in any thread, even if the state has been donated since. A
    collective."""
    leaves = named_leaves(state)
    if jax.default_backend() == "cpu" and jax.process_count() == 1:
        # XLA adds up one number after the other there, and takes four times as long
        views = {name: np.asarray(_plain(leaf)) for name, leaf in leaves.items()}
        return lambda: {name: array_sum(numbers) for name, numbers in views.items()}
    shardings = [
        leaf.sharding for leaf in leaves.values() if isinstance(leaf.sharding, NamedSharding)
    ]
    sums = _adder(NamedSharding(shardings[0].mesh, P()) if shardings else None)([*leaves.values()])
    return lambda: dict(zip(leaves, jax.device_get(sums).tolist(), strict=True))


@cache
def _adder(replicated: NamedSharding | None) -> Callable[[list[Array]], Array]:
    return jax.jit(
        lambda leaves: jnp.stack([_summed(_words(leaf)) for leaf in leaves]),
        out_shardings=replicated,
    )


def _summed(words: Array) -> Array:
    """Sums like `summed`. It does not reshape: XLA would gather an array that is split."""
    place = jnp.zeros(words.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(words.ndim)):
        index = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        place += index * jnp.uint32(stride % 2**32)
        stride *= words.shape[axis]
    mixed = words + place * jnp.uint32(PLACE)
    mixed = (mixed ^ (mixed >> SHIFTS[0])) * jnp.uint32(MIX)
    return jnp.sum(mixed ^ (mixed >> SHIFTS[1]), dtype=jnp.uint32)


def _words(leaf: Array) -> Array:
    """The bits of an array as uint32: one for each number of 32 bits or less, else several, in a
    last axis."""
    leaf = _plain(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    elif is_tiny(leaf.dtype):
        leaf = leaf.astype(jnp.float32)
    wide = min(leaf.dtype.itemsize, 4)
    return jax.lax.bitcast_convert_type(leaf, f"uint{8 * wide}").astype(jnp.uint32)


class ContentsHandler(ocp.JsonCheckpointHandler):
    """Makes the description of a checkpoint and writes it while Orbax writes the arrays."""

    @classmethod
    def typestr(cls) -> str:
        """The name in the checkpoint: Orbax's own, so that a process without infeed can restore the
        description."""
        return ocp.JsonCheckpointHandler.typestr()

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Future]:
        """Starts a thread for it."""

        async def write() -> None:
            page = args.contents()
            if jax.process_index() == 0:
                (directory / METADATA).write_text(json.dumps(page))

        return [CommitFutureAwaitingContractedSignals(write(), name="contents")]


@dataclass
class ContentsSave(ocp.args.CheckpointArgs):
    """contents: makes the description, in a thread of its own on every host. If it raises, there is
    no checkpoint."""

    contents: Callable[[], Mapping[str, Any]]


def item_handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """What writes each item of a checkpoint. Orbax's global registry has no second handler of the
    same name."""
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add(STATE, ocp.args.StandardSave, ocp.StandardCheckpointHandler())
    handlers.add(CONTENTS, ContentsSave, ContentsHandler())
    return handlers
