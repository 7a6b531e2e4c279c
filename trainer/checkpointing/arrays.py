"""The list of arrays in a checkpoint, and two checks against it: same model, and undamaged."""

from collections.abc import Mapping
from typing import Any

import jax

from pipeline.errors import CheckpointError
from pipeline.logs import logger
from trainer.batch_spec import named_leaves
from trainer.checkpointing.checksums import array_sums, cut_of

__all__ = ["check_model", "check_numbers", "list_arrays", "mesh_of"]

log = logger("trainer")

EMA = "ema/"  # in the names of averaged parameters

Listed = Mapping[str, Mapping[str, Any]]  # name -> dtype, shape, partition, cut, sum


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
