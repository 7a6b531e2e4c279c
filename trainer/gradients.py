"""The gradients of a step of training: of the whole batch at once, or added up over its microbatches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pipeline.errors import InputError
from trainer.batch_spec import ROWS_FIRST, BatchAxes
from trainer.inputs import MASK
from trainer.metrics.masking import masked_mean, masked_sum
from trainer.metrics.tally import check_metrics, per_record
from trainer.task import Batch, Task, Variables, kind_of

__all__ = ["Gradients", "accumulated", "accumulated_losses", "called", "gradients", "microbatches"]

Parts = tuple[jax.Array, Batch]
"""The numbers of the microbatches, and their rows: the arrays of a batch, [count, rows, ...]."""
Mean = Callable[[jax.Array, jax.Array], jax.Array]
"""(values [b], mask [b]) -> their mean, or a microbatch's part of the batch's mean."""


class Gradients(NamedTuple):
    """of_params: of the mean loss, like the parameters. means: the loss and each metric that has a value per record.
    extra: the model's other arrays after the batch."""

    of_params: Any
    means: dict[str, jax.Array]
    extra: Any


def called(task: Task, *given: Any) -> tuple[jax.Array, Variables, Any]:
    """What loss_fn returns. Raises InputError unless it is losses, variables and outputs."""
    made = task.loss_fn(*given)
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[1], Variables):
        return made
    raise InputError(
        f"loss_fn returned {kind_of(made)}. It must return three values: the losses [b], one per record; the Variables "
        "after the step; and the outputs for the metrics."
    )


def gradients(task: Task, variables: Variables, batch: Batch, rng: jax.Array, mean: Mean = masked_mean) -> Gradients:
    """The gradients of the mean loss of a batch."""

    def mean_loss(params: Any) -> tuple[jax.Array, Any]:
        losses, after, outputs = called(task, Variables(params, variables.extra), batch, rng, True)
        values = per_record(losses, outputs, batch, task.metrics)
        check_metrics(losses, outputs, batch, task.metrics)
        means = {name: mean(value, batch[MASK]) for name, value in values.items()}
        return means["loss"], (means, after.extra)

    grads, (means, extra) = jax.grad(mean_loss, has_aux=True)(variables.params)
    return Gradients(grads, means, extra)


def microbatches(batch: Batch, count: int, axes: BatchAxes = ROWS_FIRST) -> Parts:
    """Microbatch i has every count-th row from i on, so each device keeps its own rows."""

    def cut(leaf: jax.Array, axis: int) -> jax.Array:
        return jnp.moveaxis(leaf.reshape(*leaf.shape[:axis], -1, count, *leaf.shape[axis + 1 :]), axis + 1, 0)

    return jnp.arange(count), axes.map(cut, batch)


def accumulated(task: Task, variables: Variables, parts: Parts, rng: jax.Array, unroll: bool = False) -> Gradients:
    """The gradients of the complete batch, from its microbatches one after the other, in the memory of one.

    The random key of microbatch i is number i of `rng`. Each passes `extra` on to the next. unroll: no loop, in which
    XLA runs convolutions slowly on CPUs."""
    records = jnp.maximum(jnp.sum(parts[1][MASK] > 0), 1)  # of the batch: a microbatch may have only padding

    def part(values: jax.Array, mask: jax.Array) -> jax.Array:
        return masked_sum(values, mask) / records

    def add(carry: tuple[Any, Any], microbatch: tuple[jax.Array, Batch]) -> tuple[Any, dict[str, jax.Array]]:
        (sums, extra), (number, rows) = carry, microbatch
        made = gradients(task, Variables(variables.params, extra), rows, jax.random.fold_in(rng, number), part)
        sums = jax.tree.map(lambda total, grad: total + grad.astype(total.dtype), sums, made.of_params)
        return (sums, made.extra), made.means

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _sum_dtype(leaf)), variables.params)
    (sums, extra), means = lax.scan(add, (zeros, variables.extra), parts, unroll=unroll)
    grads = jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), sums, variables.params)
    return Gradients(grads, {name: jnp.sum(values) for name, values in means.items()}, extra)


def accumulated_losses(task: Task, variables: Variables, parts: Parts, rng: jax.Array) -> jax.Array:
    """[b]: the loss of each row of the batch, as `accumulated` computes it."""

    def add(extra: Any, microbatch: tuple[jax.Array, Batch]) -> tuple[Any, jax.Array]:
        number, rows = microbatch
        key = jax.random.fold_in(rng, number)
        losses, after, _ = called(task, Variables(variables.params, extra), rows, key, True)
        return after.extra, losses

    _, losses = lax.scan(add, variables.extra, parts)
    return losses.swapaxes(0, 1).reshape(-1)


def _sum_dtype(leaf: jax.Array) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)
