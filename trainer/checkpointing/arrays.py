"""What a checkpoint lists of its arrays, and the two proofs that come of it: of this model, and undamaged."""

from collections.abc import Mapping
from typing import Any

import jax

from pipeline.logs import logger
from pipeline.shards.errors import CheckpointError
from trainer.checkpointing.sums import array_sums, cut_of
from trainer.inputs import path_name

__all__ = ["check_model", "check_numbers", "list_arrays", "mesh_of"]

log = logger("trainer")

Listed = Mapping[str, Mapping[str, Any]]  # name -> dtype, shape, partition, cut, sum


def list_arrays(state: Any) -> dict[str, dict[str, Any]]:
    """Name of each array -> dtype, shape, partition (as text), cut and sum. A collective."""
    sums = array_sums(state)
    return {
        path_name(path): {
            "dtype": str(leaf.dtype),
            "shape": list(leaf.shape),
            "partition": str(getattr(leaf.sharding, "spec", "")),
            "cut": cut_of(leaf),
            "sum": sums[path_name(path)],
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def mesh_of(state: Any) -> dict[str, Any]:
    """The devices that a state is on: sizes of the mesh's axes, kind of device, number of processes."""
    sharding = jax.tree.leaves(state)[0].sharding
    axes = dict(sharding.mesh.shape) if isinstance(sharding, jax.sharding.NamedSharding) else {}
    kind = next(iter(sharding.device_set)).device_kind
    return {**axes, "device": kind, "processes": jax.process_count()}


def check_model(path: str, listed: Listed, like: Any) -> None:
    """Raises CheckpointError, naming an array, unless `like` has arrays of these names, dtypes and shapes."""
    saved = {name: f"{array['dtype']} {array['shape']}" for name, array in listed.items()}
    leaves = jax.tree_util.tree_leaves_with_path(like)
    wanted = {path_name(at): f"{leaf.dtype} {list(leaf.shape)}" for at, leaf in leaves}
    # The model first: of its optimizer's arrays a user knows less.
    for name in sorted(saved.keys() | wanted.keys(), key=lambda name: (name.startswith("optimizer"), name)):
        if saved.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path} is of another model or optimizer: {name} is {saved.get(name, 'missing')} there "
                f"and {wanted.get(name, 'missing')} in this task. Use the task that it was trained with, or another "
                "workdir."
            )


def check_numbers(path: str, listed: Listed, state: Any) -> None:
    """Raises CheckpointError, naming the arrays, where a restored state has other numbers than were saved."""
    sums = array_sums(state, {name: array["cut"] for name, array in listed.items()})
    wrong = [name for name, value in sums.items() if value not in (None, listed[name]["sum"])]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"{path} is damaged: {', '.join(wrong[:3])}{more} came back with other numbers.")
    if unproven := sum(value is None for value in sums.values()):
        log.info("%d of %d arrays came back without a proof: they are cut otherwise now", unproven, len(sums))
