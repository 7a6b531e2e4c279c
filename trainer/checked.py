"""Which arrays must stay finite: the loss, gradients and model in every training step, and the optimizer before a save;
what happens where one does not (TrainerConfig.on_nan); and losses far above those before them.

The check of every step is cheap. The sum of the squared gradients, a metric anyway, shows that they and their squares
are finite, so the optimizer's moments stay finite, too. Only the model is read once more. Also reading the gradients
and both moments of AdamW made a step of a medium model a third slower."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import NanError
from pipeline.logs import logger
from trainer.batch_spec import path_name
from trainer.config import OnNan
from trainer.history.segments import Hint, no_hint
from trainer.loop.dispatching import DispatchResult
from trainer.mesh import Placement
from trainer.state import TrainState
from trainer.task import Variables

__all__ = ["FiniteCheck", "LossSpikes", "first_bad", "squares"]

LOSS = "the loss"
MOST_IN_A_ROW = 100  # skipped steps; beyond that the model no longer learns
RECENT, LEAST = 256, 64  # losses to compare with
DEVIATIONS = 12  # standard deviations: normally distributed losses would practically never reach it
LOG_DEVIATIONS = 6  # of the losses' logarithms: log-normal losses, which jump more, would practically never reach it
NORMAL = 1.4826  # the standard deviation of normally distributed values, per median absolute deviation
SHARE = 1.2  # a spike exceeds the median by at least this factor, even if losses hardly vary

log = logger("trainer")


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


class FiniteCheck:
    """Checks the `_bad_leaf` of every step. skipped: how many steps were skipped. hint: ends messages about a step."""

    def __init__(self, on_nan: OnNan, state: TrainState, placement: Placement, hint: Hint = no_hint) -> None:
        self._broken = finder_of_broken(placement)
        self._on_nan, self.skipped, self._in_a_row, self._hint = on_nan, 0, 0, hint
        self._names = checked_names(state.variables)

    def reported(self, bad: np.ndarray) -> int:
        """How many steps of a dispatch to report: all, or up to the broken one that ends the run."""
        return int(np.argmax(bad >= 0)) + 1 if self._on_nan == "raise" and (bad >= 0).any() else len(bad)

    def observe(self, result: DispatchResult, bad: np.ndarray) -> None:
        """Raises NanError, naming the first broken step and the first broken array, unless such steps are skipped."""
        for i, leaf in enumerate(bad.tolist()):
            self._in_a_row = self._in_a_row + 1 if leaf >= 0 else 0
            if leaf >= 0:
                self._found(result, i, self._names[leaf])

    def before_save(self, step: int, state: TrainState) -> None:
        """Raises NanError if any array of the state is not finite, including the optimizer's."""
        if self._on_nan != "ignore" and (name := self._broken(state)):
            raise NanError(
                f"at step {step} {name} is not finite, though the loss, the gradients and the model are. No checkpoint "
                "contains it; the same command resumes from the newest checkpoint. Check the optimizer."
            )

    def _found(self, result: DispatchResult, i: int, name: str) -> None:
        step, loss = result.start + i + 1, float(result.scalars["loss"][i])
        what = f"{name} is {loss}" if name == LOSS else f"{name} is not finite (the loss is {loss:.4g})"
        said = f"after step {step} {what}"
        if self._on_nan == "raise":
            raise NanError(
                f"{said}. No checkpoint contains it; the same command resumes from the newest checkpoint. Lower the "
                "learning rate, clip the gradient, or skip such steps with on_nan=skip. Check the records of that step "
                f"(each label must be below the number of the model's classes){self._hint(step)}"
            )
        self.skipped += 1
        log.warning("%s: skipped the step (%d so far)%s", said, self.skipped, self._hint(step))
        if self._in_a_row > MOST_IN_A_ROW:
            raise NanError(f"{said}, as in the {MOST_IN_A_ROW} steps before it. Skipping steps does not help here.")


class LossSpikes:
    """Warns of a loss that is far above the last 256. After each warning it stays quiet twice as long as after the one
    before, so that a loss that jumps all the time does not fill the log.

    hint: ends the warning."""

    def __init__(self, hint: Hint) -> None:
        self._recent, self._hint = deque[float](maxlen=RECENT), hint
        self._quiet_until, self._quiet_steps = 0, RECENT

    def observe(self, start: int, losses: np.ndarray) -> None:
        """Looks at the losses of the steps start + 1, start + 2, ..."""
        finite = np.where(np.isfinite(losses), losses, -np.inf)
        at = int(np.argmax(finite))
        step, loss = start + at + 1, float(finite[at])
        if len(self._recent) >= LEAST and step > self._quiet_until and loss > self._bound():
            usual = float(np.median(self._recent))
            log.warning("step %d: the loss of %.4g is far above the usual %.4g%s", step, loss, usual, self._hint(step))
            self._quiet_until, self._quiet_steps = step + self._quiet_steps, 2 * self._quiet_steps
        self._recent.extend(finite[finite > -np.inf].tolist())

    def _bound(self) -> float:
        """What only a spike exceeds; infinite if most losses are equal or 0, which does not tell how losses vary."""
        recent = np.array(self._recent)
        median, deviation = _spread(recent)
        if median == 0 or deviation == 0:
            return np.inf
        bounds = [median + DEVIATIONS * deviation, median + (SHARE - 1) * abs(median)]
        if recent.min() > 0:
            log_median, log_deviation = _spread(np.log(recent))
            with np.errstate(over="ignore"):
                bounds.append(np.exp(log_median + LOG_DEVIATIONS * log_deviation))
        return float(max(bounds))


def _spread(values: np.ndarray) -> tuple[np.floating, np.floating]:
    """The median, and the standard deviation if the values without outliers are normally distributed."""
    median = np.median(values)
    return median, NORMAL * np.median(np.abs(values - median))
