"""Lets a model gather the parameters that fsdp splits where it uses them, one layer at a time, while rows stay split.

XLA alone gathers the rows where that takes fewer bytes. Without fsdp in the mesh, nothing here changes the program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import PartitionSpec as P

from trainer.mesh import ROWS, axes_of
from trainer.mesh_flags import FSDP, Rule
from trainer.sharding import spec_by


def gathered(module: Any, path: str, rules: Sequence[Rule]) -> Any:
    """The module, which has this path in the model, with parameters that only the other axes of these rules split."""
    if not _has_fsdp():
        return module
    graph, params, others = nnx.split(module, nnx.Param, ...)
    flat = []
    for names, leaf in nnx.to_flat_state(params):
        spec = spec_by(rules, "/".join((path, *map(str, names)))) or P()
        kept = P(*(tuple(axis for axis in axes_of(entry) if axis not in ROWS) for entry in spec))
        flat.append((names, leaf.replace(jax.lax.with_sharding_constraint(leaf.get_value(), kept))))
    return nnx.merge(graph, nnx.from_flat_state(flat), others)


def gathers_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose gradient gathers parameters once more: otherwise those of all layers are kept until then."""

    def keeps(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name != "sharding_constraint"

    return jax.checkpoint(function, prevent_cse=False, policy=keeps) if _has_fsdp() else function


def _has_fsdp() -> bool:
    return jax.sharding.get_abstract_mesh().shape.get(FSDP, 1) > 1
