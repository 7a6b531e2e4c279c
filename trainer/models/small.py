"""Small models of the recipes: convolutional networks for thumbnails, a multilayer perceptron on
the columns of a table, and a language model of stacked LSTM layers for rows of packed text, as in
the TPU notebook about Shakespeare's works."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pipeline.shards.schema import ColumnStatistics
from trainer.models.pixels import STATISTICS, Statistics, normalized

DROPOUT = 0.4  # share of the dense layer's outputs in PoolingCnn
CellState = tuple[Array, Array]
"""Of one layer, float32 [b, width] each: the cell and its output."""
_WIDTH = 16  # of an embedding, at most


class SmallCnn(nnx.Module):
    """Strided 3x3 convolutions with these widths, then a dense layer.

    Strides rather than pooling: the gradient of max pooling is slow on CPU. No batch norm: with it,
    the rows of a batch, including padding, would affect each other. statistics: means and
    deviations that normalize images."""

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int],
        rngs: nnx.Rngs,
        widths: tuple[int, ...] = (16, 32, 64),
        statistics: Statistics = STATISTICS["inception"],
    ) -> None:
        self.statistics = statistics
        height, width = (-(-side // 2 ** len(widths)) for side in image_shape[:2])
        self.convs = _convolutions(image_shape[2], widths, rngs, strides=2)
        self.head = nnx.Linear(height * width * widths[-1], num_classes, rngs=rngs)

    def __call__(self, images: Array, mask: Array | None = None) -> Array:
        """Logits float32 [b, num_classes] for images uint8 [b, *image_shape]. mask: as ResNet's."""
        # no row affects another
        x = normalized(images, self.statistics)
        for conv in self.convs:
            x = nnx.relu(conv(x))
        return self.head(x.reshape(x.shape[0], -1))


class PoolingCnn(nnx.Module):
    """The network of most MNIST tutorials: 3x3 convolutions of these widths, each with ReLU and 2x2
    max pooling; then a dense layer with ReLU, dropout and the layer of classes.

    Has 421,642 parameters for 28x28 grey images, 10 classes and the default widths. Odd sides lose
    their last row or column when pooled."""

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int],
        rngs: nnx.Rngs,
        widths: tuple[int, ...] = (32, 64),
        hidden: int = 128,
    ) -> None:
        height, width = (side // 2 ** len(widths) for side in image_shape[:2])
        self.convs = _convolutions(image_shape[2], widths, rngs)
        self.hidden = nnx.Linear(height * width * widths[-1], hidden, rngs=rngs)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)
        self.head = nnx.Linear(hidden, num_classes, rngs=rngs)

    def __call__(self, images: Array, mask: Array | None = None) -> Array:
        """Logits float32 [b, num_classes] for images uint8 [b, *image_shape]. mask: as ResNet's."""
        # no row affects another
        x = images.astype(jnp.float32) / 127.5 - 1.0
        for conv in self.convs:
            x = _pooled(nnx.relu(conv(x)))
        x = self.dropout(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))
        return self.head(x)


def _convolutions(
    channels: int, widths: tuple[int, ...], rngs: nnx.Rngs, strides: int = 1
) -> nnx.List:
    pairs = itertools.pairwise((channels, *widths))
    return nnx.List(
        nnx.Conv(before, after, (3, 3), strides=strides, rngs=rngs) for before, after in pairs
    )


def _pooled(x: Array) -> Array:
    """The maximum of each 2x2 square. On CPU, a step takes half the time of one with XLA's
    reduce-window."""
    b, height, width, channels = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    squares = (b, height // 2, 2, width // 2, 2, channels)
    return even.reshape(squares).max((2, 4))


class LstmLanguageModel(nnx.Module):
    """Logits of the next token: an embedding, LSTM layers and a dense layer, all of this width.

    Layers begin every segment with zeros, so a token sees only those before it in its own segment.
    dropout: share of each layer's outputs that training drops."""

    def __init__(
        self,
        vocabulary_size: int,
        rngs: nnx.Rngs,
        *,
        layers: int,
        width: int,
        dropout: float = 0.0,
    ) -> None:
        self.width = width
        self.embedding = nnx.Embed(
            vocabulary_size, width, embedding_init=nnx.initializers.normal(1.0), rngs=rngs
        )
        self.embedding.dtype = None  # as in Transformer
        self.layers = nnx.List(
            nnx.OptimizedLSTMCell(width, width, bias_init=_bias_init, rngs=rngs)
            for _ in range(layers)
        )
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        # float32, as in Transformer.
        self.head = nnx.Linear(
            width, vocabulary_size, preferred_element_type=jnp.float32, rngs=rngs
        )

    def __call__(self, tokens: Array, segment_ids: Array, positions: Array) -> Array:
        """Logits float32 [b, length, vocabulary] of the token after each; all arguments are int [b,
        length].

        segment_ids: equal in one segment, of neighboring tokens. positions: not used."""
        same = jnp.pad(segment_ids[:, 1:] == segment_ids[:, :-1], ((0, 0), (1, 0)))
        x = jnp.swapaxes(self.embedding(tokens), 0, 1)
        for cell in self.layers:
            x = self.dropout(_layer(cell, x, same.T))
        return self.head(jnp.swapaxes(x, 0, 1))

    def start_state(self, rows: int, length: int) -> list[CellState]:
        """The state before the first token of `rows` segments. length: not used."""
        return [_zeros(cell, rows) for cell in self.layers]

    def step(
        self, tokens: Array, position: Array, state: list[CellState]
    ) -> tuple[Array, list[CellState]]:
        """Logits float32 [b, vocabulary] after one more token of each segment, int [b], and the
        next state.

        position: not used. The logits are those of a call with the complete segments."""
        x = self.embedding(tokens)
        state = [*state]
        for number, cell in enumerate(self.layers):
            state[number], x = cell(state[number], x)
        return self.head(x), state


def _bias_init(_: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """1 for the forget gates, the second quarter, so that cells begin by remembering, as in Keras;
    0 for the others."""
    width = shape[0] // 4
    return jnp.zeros(shape, dtype).at[width : 2 * width].set(1)


def _layer(cell: nnx.OptimizedLSTMCell, inputs: Array, same: Array) -> Array:
    """The outputs [length, b, width] of a layer. same: bool [length, b], whether a token continues
    a segment."""

    def step(state: CellState, token: tuple[Array, Array]) -> tuple[CellState, Array]:
        x, continues = token
        return cell(jax.tree.map(lambda each: jnp.where(continues[:, None], each, 0), state), x)

    return jax.lax.scan(step, _zeros(cell, inputs.shape[1]), (inputs, same))[1]


def _zeros(cell: nnx.OptimizedLSTMCell, rows: int) -> CellState:
    """float32 in any precision: the sums in a cell would lose their last bits."""
    zeros = jnp.zeros((rows, cell.hidden_features))
    return zeros, zeros


class TabularMlp(nnx.Module):
    """Normalized numbers and embedded categories through dense layers with ReLU and dropout.

    columns: statistics of the inputs; sizes: how many values each has. A missing number becomes the
    mean, and a further input says so; a missing or unknown category has an embedding of its own."""

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
        self.numbers = dict[str, tuple[float, float]]()
        self.embeddings = nnx.Dict()
        width = 0
        for name, column in columns.items():
            if column.categories:
                count = len(column.categories) + 1
                features = min(_WIDTH, count)
                self.embeddings[name] = nnx.Embed(count, features, rngs=rngs)
            else:
                features = 2
                self.numbers[name] = (column.mean or 0.0, column.deviation or 1.0)
            width += sizes[name] * features
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
            parts += [
                jnp.where(missing, 0, (values - mean) / deviation),
                missing.astype(jnp.float32),
            ]
        for name, embed in self.embeddings.items():
            vectors = embed(jnp.clip(batch[name], -1, embed.num_embeddings - 2) + 1)
            parts.append(vectors.reshape(batch[name].shape[0], -1))
        x = jnp.concatenate(parts, axis=1)
        for layer in self.layers:
            x = self.dropout(nnx.relu(layer(x)))
        return self.head(x)
