"""The function that is served: which predictions of a task, from which arrays of a batch.

A prediction that does not depend on the model's arrays only repeats what the client has sent, such
as the label. So it is left out, and so are the arrays that only such predictions need."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from pipeline.errors import ExportError
from pipeline.logs import logger
from trainer.inputs import MASK
from trainer.mesh.batch_spec import named_leaves
from trainer.mesh.placement import Placement
from trainer.task import Task, Variables, chosen

log = logger("trainer")

CLASS_NAME = "{}_name"  # the prediction with the class names of a prediction
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class ServedModel:
    """predict(leaves of the model, arrays) -> predictions, [n, ...] for any n, by name.

    arrays: name -> jax.ShapeDtypeStruct of one row, before offsets are subtracted. predictions: the
    same, before any is added. Names are paths such as "image" or "boxes/left". task: has the
    offsets."""

    predict: Callable[[Sequence[Any], Arrays], dict[str, Any]]
    arrays: Mapping[str, jax.ShapeDtypeStruct]
    predictions: Mapping[str, jax.ShapeDtypeStruct]
    task: Task


def serve(
    task: Task, variables: Variables, struct: Mapping[str, Any], keys: Sequence[str] | None
) -> ServedModel:
    """The served part of the task's predictions. variables: of any kind with shapes. struct: of a
    batch, with rows.

    keys: only these predictions; default: all. Raises ExportError if none of them depends on the
    model, or if one needs the number or the checksum of its record, which exist only in a
    dataset."""
    task = task.traced_in(Placement.of(jax.local_devices()[:1]).in_context)  # of a client
    tree = jax.tree.structure(dict(struct))
    batch = named_leaves(dict(struct))
    rows = {name: _row(leaf) for name, leaf in batch.items()}

    def everything(leaves: Sequence[Any], arrays: Arrays) -> dict[str, Any]:
        assert task.predict_fn is not None
        count = next(iter(arrays.values())).shape[0]
        # No served prediction depends on a missing array, but for the mask, as every row counts.
        filled = [
            arrays[name]
            if name in arrays
            else jnp.full((count, *row.shape), 1 if name == MASK else 0, row.dtype)
            for name, row in rows.items()
        ]
        model = jax.tree.unflatten(jax.tree.structure(variables), leaves)
        return named_leaves(chosen(task.predict_fn(model, jax.tree.unflatten(tree, filled)), keys))

    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(variables)]
    batch.pop(MASK, None)
    traced, shapes = jax.make_jaxpr(everything, return_shape=True)(leaves, batch)
    # Dicts are flattened in the order of their keys. None: the model.
    sources: list[Any] = [None] * len(leaves) + sorted(batch)
    served = dict[str, set[str]]()
    for name, places in zip(sorted(shapes), dependencies(traced), strict=True):
        needs = {sources[place] for place in places}
        if None in needs:
            served[name] = needs - {None}
    arrays = sorted(set().union(*served.values()))
    _check(sorted(shapes), served, arrays)

    def predict(leaves: Sequence[Any], arrays: Arrays) -> dict[str, Any]:
        predictions = everything(leaves, arrays)
        return {name: predictions[name] for name in served}

    predictions = {name: _row(shapes[name]) for name in served}
    stored = task.stored({name: rows[name] for name in arrays})
    return ServedModel(predict, stored, predictions, task)


def _row(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _check(
    names: Sequence[str], served: Mapping[str, Collection[str]], arrays: Sequence[str]
) -> None:
    if not served:
        raise ExportError(
            f"none of the predictions {', '.join(names) or '(there are none)'} depends on the "
            "model's arrays, so there is nothing to serve. Let predict_fn return what the model "
            "computes."
        )
    if repeated := sorted(set(names) - served.keys()):
        log.info(
            "export: left out %s: computed without the model, from what a client sends",
            ", ".join(repeated),
        )
    for name in arrays:
        if name.startswith("_"):
            users = ", ".join(sorted(key for key, needs in served.items() if name in needs))
            raise ExportError(
                f"the predictions {users} depend on {name}, which only records of a dataset have. "
                "Leave them out of the keys to export."
            )
    if not arrays:
        raise ExportError(
            f"the predictions {', '.join(served)} depend on no array of the batch, only on the "
            "model."
        )


def dependencies(closed: ClosedJaxpr) -> list[frozenset[int]]:
    """The numbers of the inputs that each output of a traced function depends on."""
    dependencies = []
    for only in np.eye(len(closed.jaxpr.outvars), dtype=bool).tolist():
        _, used = dce_jaxpr(closed.jaxpr, only)
        dependencies.append(frozenset(itertools.compress(itertools.count(), used)))
    return dependencies
