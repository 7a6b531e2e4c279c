"""Text from a language model, token by token, inside one compiled loop."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

__all__ = ["LanguageModel", "sampled"]


class LanguageModel(Protocol):
    """What Transformer and LstmLanguageModel have in common."""

    def __call__(self, tokens: jax.Array, segment_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Logits float32 [b, length, vocabulary] of the token after each; all arguments are int [b, length]."""
        ...

    def start_state(self, rows: int, length: int) -> Any:
        """The state before the first token of `rows` segments of at most `length` tokens."""
        ...

    def step(self, tokens: jax.Array, position: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Logits float32 [b, vocabulary] after one more token of each segment, and the next state."""
        ...


def sampled(
    model: LanguageModel, prompts: jax.Array, keys: jax.Array, *, length: int, temperature: float, end: int
) -> jax.Array:
    """int32 [b, length]: the prompts and the tokens after them, up to `end` and then only `end`.

    prompts: int [b, tokens], with the start token. keys: a random key per row, from which its tokens follow, whatever
    else is in the batch. temperature: what logits are divided by; 0 takes the most likely token. The loop stops
    once every row has ended."""
    rows, given = prompts.shape
    tokens = jnp.full((rows, length), end, jnp.int32).at[:, :given].set(prompts)

    def goes_on(carry: tuple[jax.Array, jax.Array, Any]) -> jax.Array:
        position, tokens, _ = carry
        ended = (position >= given) & jnp.all(tokens[:, position] == end)
        return (position + 1 < length) & ~ended

    def step(carry: tuple[jax.Array, jax.Array, Any]) -> tuple[jax.Array, jax.Array, Any]:
        position, tokens, state = carry
        now = tokens[:, position]
        logits, state = model.step(now, position, state)
        chosen = _chosen(logits, keys, position, temperature)
        chosen = jnp.where((position >= given) & (now == end), end, chosen)
        following = jnp.where(position + 1 < given, tokens[:, position + 1], chosen)
        return position + 1, tokens.at[:, position + 1].set(following), state

    carry = (jnp.int32(0), tokens, model.start_state(rows, length))
    return jax.lax.while_loop(goes_on, step, carry)[1]


def _chosen(logits: jax.Array, keys: jax.Array, position: jax.Array, temperature: float) -> jax.Array:
    if not temperature:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def choose(key: jax.Array, logits: jax.Array) -> jax.Array:
        return jax.random.categorical(
            jax.random.fold_in(key, position), (logits - logits.max()) / temperature
        )  # no overflow

    return jax.vmap(choose)(keys, logits).astype(jnp.int32)
