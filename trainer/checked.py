"""Which arrays must stay finite: the loss, gradients and model in every training step, and the optimizer before a save.

The check of every step is cheap. The sum of the squared gradients, a metric anyway, shows that they and their squares
are finite, so the optimizer's moments stay finite, too. Only the model is read once more. Also reading the gradients
and both moments of AdamW made a step of a medium model a third slower."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainer.batch_spec import path_name
from trainer.mesh import Placement
from trainer.state import TrainState
from trainer.task import Variables

__all__ = ["LOSS", "checked_names", "finder_of_broken", "first_bad", "squares"]

LOSS = "the loss"


def squares(tree: Any) -> list[jax.Array]:
    """For every floating-point or complex array, the sum of its squares, in float32 or wider.

    The root of their sum is the L2 norm of all arrays as one vector."""
    return [_square_sum(leaf) for _, leaf in _inexact(tree)]


def checked_names(variables: Variables) -> list[str]:
    """The names that first_bad numbers, in the order in which they break."""
    gradients = [f"the gradient of {name}" for name, _ in _inexact(variables.params)]
    return [LOSS, *gradients, *(name for name, _ in _inexact(variables))]


def first_bad(loss: jax.Array, gradient_squares: Sequence[jax.Array], after: Variables) -> jax.Array:
    """The number, int32, of the first of the checked_names that is not finite; -1 if all are.

    The loss alone would be a step late: it is computed before the update that breaks the model. The square of a large
    gradient is infinite, too, so an infinite square counts only if the model breaks."""
    leaves = [leaf for _, leaf in _inexact(after)]
    of_gradients = jnp.stack(gradient_squares)
    sound = jnp.isfinite(loss + jnp.sum(of_gradients) + _with_itself(leaves))

    def look() -> jax.Array:
        # Reading the gradients themselves here would keep XLA from reusing their memory.
        model = ~_finite(leaves)
        gradients = jnp.isnan(of_gradients) | (jnp.isinf(of_gradients) & jnp.any(model))
        return _first(jnp.concatenate([~jnp.isfinite(loss)[None], gradients, model]))

    return jax.lax.cond(sound, lambda: jnp.int32(-1), look)


def finder_of_broken(placement: Placement) -> Callable[[TrainState], str]:
    """Finds the first non-finite array of a state; "" if there is none. A program of its own that reads all arrays."""
    first = jax.jit(lambda leaves: _first(~_finite(leaves)), out_shardings=placement.replicated)

    def find(state: TrainState) -> str:
        leaves = _inexact(state)
        number = int(jax.device_get(first([leaf for _, leaf in leaves])))
        return "" if number < 0 else leaves[number][0]

    return find


def _inexact(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(path_name(path), leaf) for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _finite(leaves: Sequence[jax.Array]) -> jax.Array:
    return jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves], bool)


def _first(flags: jax.Array) -> jax.Array:
    return jnp.where(jnp.any(flags), jnp.argmax(flags) if flags.size else 0, -1).astype(jnp.int32)


def _square_sum(leaf: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(jnp.square(jnp.abs(_widened(leaf))), cpu=_sum_on_cpu, default=jnp.sum)


def _sum_on_cpu(array: jax.Array) -> jax.Array:
    # In a scan XLA adds numbers one by one; a product takes a third of the time.
    return jnp.sum(array if array.ndim < 2 else array @ jnp.ones(array.shape[-1], array.dtype))


def _with_itself(leaves: Sequence[jax.Array]) -> jax.Array:
    """Finite only if all numbers are; it may overflow if they are huge."""
    # A dot is even cheaper, but not for gradients: it copies those that products leave in another layout.
    return sum((jnp.vdot(leaf, leaf).real for leaf in map(_widened, leaves)), jnp.float32(0))


def _widened(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
