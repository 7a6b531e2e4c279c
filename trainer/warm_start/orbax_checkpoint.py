"""The arrays of any checkpoint that Orbax's StandardCheckpointer or PyTreeCheckpointer wrote."""

from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from pipeline.errors import CheckpointError
from pipeline.storage.schemes import open_storage
from trainer.batch_spec import named_leaves
from trainer.checkpointing.bucket_path import orbax_path
from trainer.checkpointing.contents import check_tree
from trainer.checkpointing.failures import reason
from trainer.warm_start.matching import Array
from trainer.warm_start.weights import Weights

__all__ = ["orbax_weights"]

OF_NNX = "/value"  # ends the name of each array in a saved nnx.State


def orbax_weights(path: str) -> Weights:
    """Names are paths joined with "/", without the "value" that ends each path of an nnx.State."""
    check_tree(open_storage(path), path)
    handler = ocp.PyTreeCheckpointHandler()
    where = orbax_path(path)
    try:
        with ocp.Checkpointer(handler) as reader:
            tree: Any = reader.metadata(where).item_metadata.tree  # pyright: ignore
    except Exception as error:  # Orbax raises many kinds
        raise CheckpointError(f"cannot read the checkpoint {path}: {reason(error)}") from error
    described = {name: leaf for name, leaf in named_leaves(tree).items() if hasattr(leaf, "shape")}
    suffix = OF_NNX if described and all(name.endswith(OF_NNX) for name in described) else ""
    originals = {name.removesuffix(suffix): name for name in described}
    leaves, structure = jax.tree.flatten(tree)
    order = list(named_leaves(tree))
    as_numpy = structure.unflatten([ocp.RestoreArgs(restore_type=np.ndarray)] * len(leaves))

    def read(name: str) -> np.ndarray:
        chosen = order.index(originals[name])
        item = structure.unflatten([leaf if n == chosen else ocp.PLACEHOLDER for n, leaf in enumerate(leaves)])
        args: Any = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy)  # pyright: ignore[reportCallIssue]
        try:
            with ocp.Checkpointer(handler) as reader:
                return jax.tree.leaves(reader.restore(where, args=args))[chosen]
        except Exception as error:
            raise CheckpointError(f"cannot read {name} of {path}: {reason(error)}") from error

    arrays = {name: _array(described[original]) for name, original in originals.items()}
    return Weights(path, arrays, read)


def _array(described: Any) -> Array:
    return Array(tuple(described.shape), str(np.dtype(described.dtype)))
