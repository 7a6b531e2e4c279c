"""Which axis of an array is the batch: everything that cuts, places, masks or checks the arrays of an input asks here.

Losses, outputs, predictions and keys that begin with _ always have rows first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from pipeline.errors import InputError, OptionError, did_you_mean
from trainer.batch_spec import named_leaves, path_name

__all__ = ["ROWS_FIRST", "BatchAxes"]


@dataclass(frozen=True)
class BatchAxes:
    """by_name: TrainerConfig.batch_axis. The batch is the first axis of all other arrays."""

    by_name: Mapping[str, int] = field(default_factory=dict, hash=False)

    def of(self, path: Any) -> int:
        """The axis of the array at this path in a batch."""
        return self.by_name.get(path_name(path), 0)

    def map(self, function: Callable[[Any, int], Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with `function(array, axis)` in place of each array."""
        return jax.tree_util.tree_map_with_path(lambda path, leaf: function(leaf, self.of(path)), dict(batch))

    def check_names(self, struct: Mapping[str, Any]) -> None:
        """Raises OptionError unless the spec has all arrays that are named."""
        known = [name for name in named_leaves(dict(struct)) if not name.startswith("_")]
        for name in self.by_name:
            if name not in known:
                raise OptionError(f"batch_axis names {name!r}, which the batch lacks.{did_you_mean(str(name), known)}")

    def check_rows(self, struct: Mapping[str, Any], host_batch: int) -> None:
        """Raises InputError, which names the key, unless every array of the spec has `host_batch` rows."""
        leaves = named_leaves(dict(struct))
        for name in sorted(leaves, key=lambda name: name.startswith("_")):  # the user's first
            leaf, axis = leaves[name], self.by_name.get(name, 0)
            if leaf.shape[axis : axis + 1] != (host_batch,):
                along = f" along axis {axis} (batch_axis)" if axis else ""
                raise InputError(
                    f"the input's {name} is {leaf.dtype} {list(leaf.shape)}; expected {host_batch} rows{along}, this "
                    "host's part of the global batch. Give infeed's datasets hosts=ctx.hosts; make other batches of "
                    "InputContext.per_host_batch_size rows."
                )


ROWS_FIRST = BatchAxes()  # as all inputs of pipeline.datasets have them
