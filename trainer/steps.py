"""The training and evaluation step, and the programs made of them: one step, or k steps in one dispatch."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from trainer.config import LoopMode
from trainer.mesh import Placement
from trainer.metrics import blank_padding, counted_crc, masked_mean, masked_sum, per_record, records
from trainer.state import TrainState
from trainer.task import Batch, Task, Variables

__all__ = ["CRC_SUM", "FINITE", "RECORDS", "EvalState", "Program", "Step", "eval_step", "train_step"]

FINITE, RECORDS, CRC_SUM = "_finite", "_records", "_crc_sum"
Step = Callable[[Any, Batch], tuple[Any, dict[str, jax.Array]]]


def train_step(task: Task) -> Step:
    """(TrainState, batch) -> the next state and scalars: loss, every metric, grad_norm, and `_finite`, whether the
    loss and everything that the step wrote is finite."""

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        batch = blank_padding(batch)
        mask = batch["_mask"]
        # The key follows from the step alone, so a resumed run draws what the straight one draws.
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

        def mean_loss(params: Any) -> tuple[jax.Array, Any]:
            variables = Variables(params, state.variables.extra)
            losses, after, outputs = task.loss_fn(variables, batch, rng, True)
            values = per_record(losses, outputs, batch, task.metrics)
            means = {name: masked_mean(value, mask) for name, value in values.items()}
            return means["loss"], (means, after.extra)

        grads, (means, extra) = jax.grad(mean_loss, has_aux=True)(state.variables.params)
        updates, optimizer = task.optimizer.update(grads, state.optimizer, state.variables.params)
        params = optax.apply_updates(state.variables.params, updates)
        after = TrainState(state.step + 1, Variables(params, extra), optimizer, state.key)
        # The loss alone is one step late: it is computed before the update that breaks the parameters.
        finite = jnp.isfinite(means["loss"]) & _all_finite((params, extra, optimizer))
        return after, means | {"grad_norm": optax.tree.norm(grads), FINITE: finite}

    return step


class EvalState(NamedTuple):
    """What an evaluation carries from step to step, unchanged. padding: int32 [], which of PADDINGS the task sees."""

    variables: Variables
    padding: jax.Array


def eval_step(task: Task) -> Step:
    """(EvalState, batch) -> the same state and masked sums: loss, every metric, and the proof's `_records` and
    `_crc_sum`. The state goes through so that both steps run in one loop; donated, it costs no copy."""

    def step(state: EvalState, batch: Batch) -> tuple[EvalState, dict[str, jax.Array]]:
        proof = {RECORDS: records(batch), CRC_SUM: counted_crc(batch)}
        batch = blank_padding(batch, state.padding)
        losses, _, outputs = task.loss_fn(state.variables, batch, jax.random.key(0), False)
        values = per_record(losses, outputs, batch, task.metrics)
        return state, {name: masked_sum(value, batch["_mask"]) for name, value in values.items()} | proof

    return step


class Program:
    """A step compiled for one batch and, where it scans, for k stacked ones: at most two executables.

    They take exactly the shapes and shardings they were made for; nothing recompiles in silence."""

    def __init__(
        self,
        step: Step,
        carry: Any,
        host_struct: Any,
        placement: Placement,
        *,
        global_batch: int,
        k: int,
        mode: LoopMode,
    ) -> None:
        self.k = k
        self.executables: dict[int, Any] = {}
        self._placement, self._step = placement, step
        self._one_struct = placement.global_struct(host_struct, global_batch)
        self._many_struct = placement.global_struct(host_struct, global_batch, k)
        self._carry = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), carry)
        self._one = self._jit(step).trace(self._carry, self._one_struct)
        on_cpu = placement.mesh.devices.flat[0].platform == "cpu"
        slow_in_loops = on_cpu and has_convolution(self._one.jaxpr)
        self.scans = k > 1 and (mode == "scan" or (mode == "auto" and not slow_in_loops))

    def compile(self, lengths: Collection[int]) -> None:
        """Compiles what dispatches of these lengths need: the single step, the scan, or both."""
        if 1 not in self.executables and (not self.scans or 1 in lengths):
            self.executables[1] = self._one.lower().compile()
        if self.k not in self.executables and self.scans and self.k in lengths:
            scan = self._jit(lambda carry, batches: lax.scan(self._step, carry, batches))
            self.executables[self.k] = scan.trace(self._carry, self._many_struct).lower().compile()

    def place(self, host_batch: Any, stacked: bool) -> Any:
        """The host's rows of one batch, or of k stacked ones, on the devices."""
        return self._placement.place(host_batch, self._many_struct if stacked else self._one_struct)

    def __call__(self, carry: Any, batches: tuple[Any, ...], stacked: bool) -> tuple[Any, list[dict[str, Any]]]:
        """Dispatches without waiting. The scalars come stacked [k] from a scan, else one dict a step."""
        if stacked:
            carry, scalars = self.executables[self.k](carry, batches[0])
            return carry, [scalars]
        scalars_of = []
        for batch in batches:
            carry, scalars = self.executables[1](carry, batch)
            scalars_of.append(scalars)
        return carry, scalars_of

    def _jit(self, function: Callable[..., Any]) -> Any:
        shardings = (jax.tree.map(lambda x: x.sharding, self._carry), self._placement.replicated)
        return jax.jit(function, donate_argnums=0, out_shardings=shardings)


def has_convolution(jaxpr: Any) -> bool:
    """Whether a convolution is anywhere in a (closed) jaxpr, also inside its calls and branches."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(
        equation.primitive.name == "conv_general_dilated" or any(map(has_convolution, _inner(equation.params)))
        for equation in jaxpr.eqns
    )


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns") or hasattr(item, "jaxpr"):
                yield item


def _all_finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats] or [True]))
