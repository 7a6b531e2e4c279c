"""The gradients of a step of training, and which arrays must stay finite.

Gradients are computed for the complete batch, or added up over its microbatches. The loss, the
gradients and the model are checked in every training step, the optimizer before a save.

The check of every step is cheap. The sum of the squared gradients, a metric anyway, shows that they
and their squares are finite, so the optimizer's moments stay finite, too. Only the model is read
once more. Also reading the gradients and both moments of AdamW made a step of a medium model a
third slower."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import PartitionSpec as P

from pipeline.errors import InputError
from trainer.config import DATA
from trainer.mesh.batch_spec import ROWS_FIRST, BatchAxes, path_name
from trainer.mesh.placement import Placement
from trainer.metrics.labels import OUTSIDE, counting
from trainer.metrics.tally import check_metrics, masked_mean, masked_sum, per_record
from trainer.step.state import widened
from trainer.task import Batch, Task, TrainState, Variables, kind_of

Parts = tuple[Array, Batch]
"""The numbers of the microbatches, and their rows: the arrays of a batch, [count, rows, ...]."""
Mean = Callable[[Array, Array], Array]
"""(values [b], mask [b]) -> their mean, or a microbatch's part of the batch's mean."""

Finder = Callable[[TrainState], Callable[[], str]]
"""Begins to look for non-finite arrays in a state. The result returns the name of the first, "" if
there is none, in any thread and even if the state has been donated since."""

LOSS = "the loss"


class Gradients(NamedTuple):
    """of_params: of the mean loss, like the parameters. means: the loss and each metric that has a
    value per record; also how many labels are outside of classes. extra: the model's other arrays
    after the batch."""

    of_params: Any
    means: dict[str, Array]
    extra: Any


def called(task: Task, *arguments: Any) -> tuple[Array, Variables, Any]:
    """What loss_fn returns. Raises InputError unless it is losses, variables and outputs."""
    returned = task.loss_fn(*arguments)
    if isinstance(returned, tuple) and len(returned) == 3 and isinstance(returned[1], Variables):
        return returned
    raise InputError(
        f"loss_fn returned {kind_of(returned)}. It must return three values: the losses [b], one "
        "per record; the Variables after the step; and the outputs for the metrics."
    )


def read_by(optimizer: optax.GradientTransformation, params: Any, state: Any) -> list[bool]:
    """Whether the optimizer reads the gradient of each parameter: it reads none of those that are
    frozen, in whatever way. Traces its update once."""
    update: Any = jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr
    _, read = dce_jaxpr(update, [True] * len(update.outvars))
    return read[: len(jax.tree.leaves(params))]


def gradients(
    task: Task,
    variables: Variables,
    batch: Batch,
    rng: Array,
    mean: Mean = masked_mean,
    read: Sequence[bool] | None = None,
) -> Gradients:
    """The gradients of the mean loss of a batch. read: for which parameters; None: for all. Others
    get zeros, and the program has no backward pass for them."""

    def mean_loss(params: Any) -> tuple[Array, Any]:
        if read is not None:
            leaves, tree = jax.tree.flatten(params)
            pairs = zip(leaves, read, strict=True)
            params = tree.unflatten(
                [leaf if trained else lax.stop_gradient(leaf) for leaf, trained in pairs]
            )
        losses, after, outputs = called(task, Variables(params, variables.extra), batch, rng, True)
        values = per_record(losses, outputs, batch, task.metrics)
        if task.sample_weight is not None:
            values["loss"] = losses * task.sample_weight(batch)
        check_metrics(losses, outputs, batch, task.metrics)
        means = {
            name: (masked_sum if name.startswith(OUTSIDE) else mean)(value, counting(batch))
            for name, value in values.items()
        }
        return means["loss"], (means, after.extra)

    grads, (means, extra) = jax.grad(mean_loss, has_aux=True)(variables.params)
    return Gradients(grads, means, extra)


def microbatches(batch: Batch, count: int, axes: BatchAxes = ROWS_FIRST) -> Parts:
    """Microbatch i has every count-th row from i on, so each device keeps its own rows."""

    def cut(leaf: Array, axis: int) -> Array:
        return jnp.moveaxis(
            leaf.reshape(*leaf.shape[:axis], -1, count, *leaf.shape[axis + 1 :]), axis + 1, 0
        )

    return jnp.arange(count), axes.map(cut, batch)


def accumulated(
    task: Task,
    variables: Variables,
    parts: Parts,
    rng: Array,
    unroll: bool = False,
    apart: Placement | None = None,
    read: Sequence[bool] | None = None,
) -> Gradients:
    """The gradients of the complete batch, from its microbatches one after the other, in the memory
    of one.

    The random key of microbatch i is number i of `rng`. Each passes `extra` on to the next. unroll:
    no loop, in which XLA runs convolutions slowly on CPUs. apart: for a task of independent rows;
    along the data axis, devices add up the gradients of their own rows, and sum them once. Without,
    XLA sums them in every microbatch. read: see `gradients`."""
    if apart is None or apart.mesh.shape[DATA] == 1:
        return _added(task, unroll, lambda sums: sums, read, variables, parts, rng)
    rows = apart.axes.map(lambda _, axis: P(*[None] * (axis + 1), DATA), parts[1])
    added = jax.shard_map(
        partial(_added, task, unroll, partial(lax.psum, axis_name=DATA), read),
        mesh=apart.mesh,
        in_specs=(P(), (P(), rows), P()),
        out_specs=P(),
        axis_names={DATA},
        check_vma=False,
    )
    return added(variables, parts, rng)


def _added(
    task: Task,
    unroll: bool,
    total: Any,
    read: Sequence[bool] | None,
    variables: Variables,
    parts: Parts,
    rng: Array,
) -> Gradients:
    # of the batch: a microbatch may have no label
    records = jnp.maximum(total(jnp.sum(counting(parts[1]) > 0)), 1)

    def part(values: Array, mask: Array) -> Array:
        return masked_sum(values, mask) / records

    def add(carry: tuple[Any, Any], microbatch: Parts) -> tuple[Any, dict[str, Array]]:
        sums, extra = carry
        number, rows = microbatch
        grads, means, extra = gradients(
            task,
            Variables(variables.params, extra),
            rows,
            jax.random.fold_in(rng, number),
            part,
            read,
        )
        sums = jax.tree.map(lambda total, grad: total + grad.astype(total.dtype), sums, grads)
        return (sums, extra), means

    zeros = jax.tree.map(lambda leaf: jnp.zeros_like(widened(leaf)), variables.params)
    (sums, extra), means = lax.scan(add, (zeros, variables.extra), parts, unroll=unroll)
    sums, means = total((sums, {name: jnp.sum(values) for name, values in means.items()}))
    return Gradients(
        jax.tree.map(lambda grad, leaf: grad.astype(leaf.dtype), sums, variables.params),
        means,
        extra,
    )


def squares(tree: Any) -> list[Array]:
    """The sum of squares of every floating-point or complex array, in float32 or wider.

    The root of their sum is the L2 norm of all arrays as one vector."""
    return [
        jax.lax.platform_dependent(
            jnp.square(jnp.abs(widened(leaf))), cpu=_sum_on_cpu, default=jnp.sum
        )
        for _, leaf in _inexact(tree)
    ]


def checked_names(variables: Variables) -> list[str]:
    """The names that first_bad numbers, in the order in which they break."""
    gradients = [f"the gradient of {name}" for name, _ in _inexact(variables.params)]
    return [LOSS, *gradients, *(name for name, _ in _inexact(variables))]


def first_bad(loss: Array, gradient_squares: Sequence[Array], after: Variables) -> Array:
    """The number, int32, of the first of the checked_names that is not finite; -1 if all are.

    The loss alone would be a step late: it is computed before the update that breaks the model. The
    square of a large gradient is infinite, too, so an infinite square counts only if the model
    breaks."""
    leaves = [leaf for _, leaf in _inexact(after)]
    of_gradients = jnp.stack(gradient_squares)
    sound = jnp.isfinite(loss + jnp.sum(of_gradients) + _with_itself(leaves))

    def look() -> Array:
        # Reading the gradients themselves here would keep XLA from reusing their memory.
        model = ~_finite(leaves)
        gradients = jnp.isnan(of_gradients) | (jnp.isinf(of_gradients) & jnp.any(model))
        return _first(jnp.concatenate([~jnp.isfinite(loss)[None], gradients, model]))

    return jax.lax.cond(sound, lambda: jnp.int32(-1), look)


def finder_of_broken(placement: Placement) -> Finder:
    """The quickest Finder on these devices."""
    if placement.on_cpu and jax.process_count() == 1:
        return _begin_on_host
    return _beginning_on_devices(placement)


def _beginning_on_devices(placement: Placement) -> Finder:
    first = jax.jit(lambda leaves: _first(~_finite(leaves)), out_shardings=placement.replicated)

    def begin(state: TrainState) -> Callable[[], str]:
        leaves = dict(_inexact(state))
        names = [*leaves, ""]
        number = first([*leaves.values()])
        return lambda: names[int(jax.device_get(number))]

    return begin


def _begin_on_host(state: TrainState) -> Callable[[], str]:
    # views; a program would take a second to compile
    arrays = [(name, np.asarray(leaf)) for name, leaf in _inexact(state)]
    return lambda: next((name for name, array in arrays if not np.isfinite(array).all()), "")


def _inexact(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (path_name(path), leaf) for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]


def _finite(leaves: Sequence[Array]) -> Array:
    return jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves], bool)


def _first(flags: Array) -> Array:
    return jnp.where(jnp.any(flags), jnp.argmax(flags) if flags.size else 0, -1).astype(jnp.int32)


def _sum_on_cpu(array: Array) -> Array:
    # In a scan XLA adds numbers one by one; a product takes a third of the time.
    return jnp.sum(array if array.ndim < 2 else array @ jnp.ones(array.shape[-1], array.dtype))


def _with_itself(leaves: Sequence[Array]) -> Array:
    """Finite only if all numbers are; it may overflow if they are huge."""
    # A dot is even cheaper, but not for gradients: it copies those that products leave in another
    # layout. It is over all axes, because jnp.vdot ravels, for which XLA gathers an array that is
    # split.
    return sum(
        (jnp.tensordot(x, x.conj(), x.ndim).real for x in map(widened, leaves)), jnp.float32(0)
    )
