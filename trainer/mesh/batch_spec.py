"""The spec of a host batch, the checks of specs and batches, and which axis of an array is the
batch.

Arrays have names such as "dense/kernel". Everything that cuts, places, masks or checks the arrays
of an input asks BatchAxes. Losses, outputs, predictions and keys that begin with _ always have rows
first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import InputError, OptionError

NARROW = {
    np.dtype(np.int64): np.int32,
    np.dtype(np.uint64): np.uint32,
    np.dtype(np.float64): np.float32,
}


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their names, such as "dense/kernel"."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_name(path: Any) -> str:
    """The name of a leaf from its path, such as "dense/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def batch_struct(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A batch's spec as a tree of jax.ShapeDtypeStruct. Raises InputError for dtypes that JAX would
    silently narrow."""
    struct = {
        key: jax.tree.map(lambda x: jax.ShapeDtypeStruct(tuple(x.shape), np.dtype(x.dtype)), value)
        for key, value in spec.items()
    }
    for name, leaf in named_leaves(struct).items():
        if leaf.dtype in NARROW and not jax.config.read("jax_enable_x64"):
            narrow = np.dtype(NARROW[leaf.dtype])
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
    got = named_leaves(dict(batch))
    expected = named_leaves(dict(struct))
    if got.keys() != expected.keys():
        raise InputError(
            f"a batch has the keys {', '.join(sorted(got))}; expected "
            f"{', '.join(sorted(expected))}. All batches must have the same keys."
        )
    # the user's first
    for name, want in sorted(expected.items(), key=lambda item: item[0].startswith("_")):
        have = got[name]
        if tuple(have.shape) != want.shape or have.dtype != want.dtype:
            raise InputError(
                f"a batch's {name} is {have.dtype} {list(have.shape)}; expected {want.dtype} "
                f"{list(want.shape)}. Shapes are static: drop the remainder, or pad the batch with "
                "rows of _mask 0, as pipeline.tf_data.evaluation_batches does."
            )


def check_is_mapping(batch: object) -> None:
    """Raises InputError unless `batch` is a mapping."""
    if not isinstance(batch, Mapping):
        how = " Name its parts: dataset.map(lambda x, y: {'image': x, 'label': y})." * isinstance(
            batch, tuple
        )
        raise InputError(
            f"a batch is a {type(batch).__name__}. It must be a dict such as {{'image': "
            f"array}}.{how}"
        )


def _alike(batch: Mapping[str, Any], struct: Mapping[str, Any]) -> bool:
    # Runs for every batch: takes 1 us for three arrays; the tree functions would take 3 us, with
    # names 11 us.
    for key, want in struct.items():
        have = batch.get(key)
        if type(have) is not np.ndarray or have.shape != want.shape or have.dtype != want.dtype:
            break
    else:
        return len(batch) == len(struct)
    leaves, tree = jax.tree.flatten(dict(batch))
    expected, wanted_tree = jax.tree.flatten(dict(struct))
    return tree == wanted_tree and all(
        have.shape == want.shape and have.dtype == want.dtype
        for have, want in zip(leaves, expected, strict=True)
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
        for name in sorted(leaves, key=lambda name: name.startswith("_")):  # the user's first
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
