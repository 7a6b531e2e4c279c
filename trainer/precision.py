"""The dtypes of a model: of its parameters, its computations and its outputs."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pipeline.errors import OptionError, did_you_mean

__all__ = ["PRECISIONS", "Precision", "precision_of"]


@dataclass(frozen=True)
class Precision:
    """Dtypes by use: params, compute and outputs. Losses, metrics and the statistics of norms stay in float32."""

    params: Any = jnp.float32
    compute: Any = jnp.float32
    outputs: Any = jnp.float32

    def in_params(self, tree: Any) -> Any:
        """The tree with its floating-point arrays in the dtype of parameters."""
        return _cast(tree, self.params)

    def in_outputs(self, tree: Any) -> Any:
        """The tree with its floating-point arrays in the dtype of outputs."""
        return _cast(tree, self.outputs)


PRECISIONS = {
    "f32": Precision(),
    "bf16": Precision(compute=jnp.bfloat16),
    "bf16_params": Precision(params=jnp.bfloat16, compute=jnp.bfloat16),
}
"""By the names of TrainerConfig.precision. bf16 keeps parameters in float32, bf16_params does not."""


def precision_of(name: str) -> Precision:
    """The Precision of this name. Raises OptionError for another."""
    if name not in PRECISIONS:
        raise OptionError(f"there is no precision {name!r}.{did_you_mean(name, PRECISIONS)}")
    return PRECISIONS[name]


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)
