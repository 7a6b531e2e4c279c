"""A multilayer perceptron on the columns of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from pipeline.shards.schema import ColumnStatistics

_WIDTH = 16  # of an embedding, at most


class TabularMlp(nnx.Module):
    """Normalized numbers and embedded categories through dense layers with ReLU and dropout.

    columns: statistics of the inputs; sizes: how many values each has. A missing number becomes the mean, and a further
    input says so; a missing or unknown category has an embedding of its own."""

    def __init__(
        self,
        columns: Mapping[str, ColumnStatistics],
        sizes: Mapping[str, int],
        outputs: int,
        rngs: nnx.Rngs,
        *,
        widths: Sequence[int],
        dropout: float,
    ) -> None:
        numbers = {name: each for name, each in columns.items() if not each.categories}
        self.numbers = {name: (each.mean or 0.0, each.deviation or 1.0) for name, each in numbers.items()}
        classes = {name: len(each.categories) + 1 for name, each in columns.items() if each.categories}
        self.embeddings = nnx.Dict({name: nnx.Embed(n, min(_WIDTH, n), rngs=rngs) for name, n in classes.items()})
        width = sum(sizes[name] * (min(_WIDTH, classes[name]) if name in classes else 2) for name in columns)
        self.layers = nnx.List()
        for after in widths:
            self.layers.append(nnx.Linear(width, after, rngs=rngs))
            width = after
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.head = nnx.Linear(width, outputs, rngs=rngs)

    def __call__(self, batch: Mapping[str, Any]) -> Array:
        """float32 [b, outputs] for a batch with a feature [b] or [b, n] per column."""
        parts = list[Array]()
        for name, (mean, deviation) in self.numbers.items():
            values = batch[name].astype(jnp.float32).reshape(batch[name].shape[0], -1)
            missing = jnp.isnan(values)
            parts += [jnp.where(missing, 0, (values - mean) / deviation), missing.astype(jnp.float32)]
        for name, embed in self.embeddings.items():
            vectors = embed(jnp.clip(batch[name], -1, embed.num_embeddings - 2) + 1)
            parts.append(vectors.reshape(batch[name].shape[0], -1))
        x = jnp.concatenate(parts, axis=1)
        for layer in self.layers:
            x = self.dropout(nnx.relu(layer(x)))
        return self.head(x)
