"""A language model of stacked LSTM layers for rows of packed text, as in the TPU notebook about Shakespeare's works."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

CellState = tuple[Array, Array]
"""Of one layer, float32 [b, width] each: the cell and its output."""


class LstmLanguageModel(nnx.Module):
    """Logits of the next token: an embedding, LSTM layers and a dense layer, all of this width.

    Layers begin every segment with zeros, so a token sees only those before it in its own segment. dropout: share of
    each layer's outputs that training drops."""

    def __init__(
        self, vocabulary_size: int, rngs: nnx.Rngs, *, layers: int = 2, width: int = 256, dropout: float = 0.0
    ) -> None:
        self.width = width
        self.embedding = nnx.Embed(vocabulary_size, width, embedding_init=nnx.initializers.normal(1.0), rngs=rngs)
        self.embedding.dtype = None  # as in Transformer
        self.layers = nnx.List(
            nnx.OptimizedLSTMCell(width, width, bias_init=_bias_init, rngs=rngs) for _ in range(layers)
        )
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        # float32, as in Transformer.
        self.head = nnx.Linear(width, vocabulary_size, preferred_element_type=jnp.float32, rngs=rngs)

    def __call__(self, tokens: Array, segment_ids: Array, positions: Array) -> Array:
        """Logits float32 [b, length, vocabulary] of the token after each; all arguments are int [b, length].

        segment_ids: equal in one segment, of neighboring tokens. positions: not used."""
        same = jnp.pad(segment_ids[:, 1:] == segment_ids[:, :-1], ((0, 0), (1, 0)))
        x = jnp.swapaxes(self.embedding(tokens), 0, 1)
        for cell in self.layers:
            x = self.dropout(_layer(cell, x, same.T))
        return self.head(jnp.swapaxes(x, 0, 1))

    def start_state(self, rows: int, length: int) -> list[CellState]:
        """The state before the first token of `rows` segments. length: not used."""
        return [_zeros(cell, rows) for cell in self.layers]

    def step(self, tokens: Array, position: Array, state: list[CellState]) -> tuple[Array, list[CellState]]:
        """Logits float32 [b, vocabulary] after one more token of each segment, int [b], and the next state.

        position: not used. The logits are those of a call with the complete segments."""
        x, after = self.embedding(tokens), []
        for cell, before in zip(self.layers, state, strict=True):
            carry, x = cell(before, x)
            after.append(carry)
        return self.head(x), after


def _bias_init(_: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """1 for the forget gates, the second quarter, so that cells begin by remembering, as in Keras; 0 for the others."""
    width = shape[0] // 4
    return jnp.zeros(shape, dtype).at[width : 2 * width].set(1)


def _layer(cell: nnx.OptimizedLSTMCell, inputs: Array, same: Array) -> Array:
    """The outputs [length, b, width] of a layer. same: bool [length, b], whether a token continues a segment."""

    def step(state: CellState, given: tuple[Array, Array]) -> tuple[CellState, Array]:
        x, continues = given
        kept = jax.tree.map(lambda each: jnp.where(continues[:, None], each, 0), state)
        return cell(kept, x)

    return jax.lax.scan(step, _zeros(cell, inputs.shape[1]), (inputs, same))[1]


def _zeros(cell: nnx.OptimizedLSTMCell, rows: int) -> CellState:
    """float32 in any precision: the sums in a cell would lose their last bits."""
    zeros = jnp.zeros((rows, cell.hidden_features))
    return zeros, zeros
