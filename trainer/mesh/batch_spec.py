"""The spec of a host batch, the checks of specs and batches, and which axis of an array is the
batch.

Arrays have names such as "dense/kernel". Everything that cuts, places, masks or checks the arrays
of an input asks BatchAxes. Losses, outputs, predictions and keys that begin with _ always have rows
first."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import InputError, OptionError
from pipeline.spec import delivered


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their names, such as "dense/kernel"."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_name(path: Any) -> str:
    """The name of a leaf from its path, such as "dense/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def batch_struct(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A batch's spec as a tree of jax.ShapeDtypeStruct. Raises InputError for dtypes that JAX would
    silently narrow."""
    struct = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(tuple(x.shape), np.dtype(x.dtype)), dict(spec)
    )
    for name, leaf in named_leaves(struct).items():
        narrow = delivered(leaf.dtype)
        if narrow != leaf.dtype and not jax.config.read("jax_enable_x64"):
            raise InputError(
                f"the batch's {name} is {leaf.dtype}, which JAX would cut to 32 bits. Deliver "
                f"{narrow}."
            )
        if leaf.dtype.kind not in "biufV":  # V: bfloat16 and similar
            raise InputError(
                f"the batch's {name} is {leaf.dtype}. Batches contain numbers only; drop or encode "
                "it."
            )
    return struct


def check_batch(batch: Mapping[str, Any], struct: Mapping[str, Any]) -> None:
    """Raises InputError, which names the key, unless `batch` has the keys, shapes and dtypes of
    `struct`."""
    check_is_mapping(batch)
    if _alike(batch, struct):
        return
    arrays = named_leaves(dict(batch))
    specs = named_leaves(dict(struct))
    if arrays.keys() != specs.keys():
        raise InputError(
            f"a batch has the keys {', '.join(sorted(arrays))}; expected "
            f"{', '.join(sorted(specs))}. All batches must have the same keys."
        )
    for name in _users_first(specs):
        array = arrays[name]
        spec = specs[name]
        if tuple(array.shape) != spec.shape or array.dtype != spec.dtype:
            raise InputError(
                f"a batch's {name} is {array.dtype} {list(array.shape)}; expected {spec.dtype} "
                f"{list(spec.shape)}. Shapes are static: drop the remainder, or pad the batch with "
                "rows of _mask 0, as pipeline.tf_data.evaluation_batches does."
            )


def check_is_mapping(batch: object) -> None:
    """Raises InputError unless `batch` is a mapping."""
    if not isinstance(batch, Mapping):
        how = ""
        if isinstance(batch, tuple):
            how = " Name its parts: dataset.map(lambda x, y: {'image': x, 'label': y})."
        raise InputError(
            f"a batch is a {type(batch).__name__}. It must be a dict such as {{'image': "
            f"array}}.{how}"
        )


def _users_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: name.startswith("_"))


def _alike(batch: Mapping[str, Any], struct: Mapping[str, Any]) -> bool:
    # Runs for every batch: takes 1 us for three arrays; the tree functions would take 3 us, with
    # names 11 us.
    for key, spec in struct.items():
        array = batch.get(key)
        if type(array) is not np.ndarray or array.shape != spec.shape or array.dtype != spec.dtype:
            break
    else:
        return len(batch) == len(struct)
    arrays, tree = jax.tree.flatten(dict(batch))
    specs, spec_tree = jax.tree.flatten(dict(struct))
    return tree == spec_tree and all(
        array.shape == spec.shape and array.dtype == spec.dtype
        for array, spec in zip(arrays, specs, strict=True)
    )


@dataclass(frozen=True)
class BatchAxes:
    """by_name: TrainerConfig.batch_axis. The batch is the first axis of all other arrays."""

    by_name: Mapping[str, int] = field(default_factory=dict, hash=False)

    def of(self, path: Any) -> int:
        """The axis of the array at this path in a batch."""
        return self.by_name.get(path_name(path), 0)

    def map(self, function: Callable[[Any, int], Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with `function(array, axis)` in place of each array."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: function(leaf, self.of(path)), dict(batch)
        )

    def check_names(self, struct: Mapping[str, Any]) -> None:
        """Raises OptionError unless the spec has all arrays that are named."""
        known = [name for name in named_leaves(dict(struct)) if not name.startswith("_")]
        for name in self.by_name:
            if name not in known:
                raise OptionError(
                    f"batch_axis names {name!r}, which the batch "
                    f"lacks.{did_you_mean(str(name), known)}"
                )

    def check_rows(self, struct: Mapping[str, Any], host_batch: int) -> None:
        """Raises InputError, which names the key, unless every array of the spec has `host_batch`
        rows."""
        leaves = named_leaves(dict(struct))
        for name in _users_first(leaves):
            leaf = leaves[name]
            axis = self.by_name.get(name, 0)
            if leaf.shape[axis : axis + 1] != (host_batch,):
                along = f" along axis {axis} (batch_axis)" if axis else ""
                raise InputError(
                    f"the input's {name} is {leaf.dtype} {list(leaf.shape)}; expected {host_batch} "
                    f"rows{along}, this host's part of the global batch. Give infeed's datasets "
                    "hosts=ctx.hosts; make other batches of InputContext.per_host_batch_size rows."
                )


ROWS_FIRST = BatchAxes()  # as all inputs of pipeline.datasets have them
