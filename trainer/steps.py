"""The training step and the evaluation step: pure functions of what is carried and a batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trainer.metrics.masking import bad_rows, blank_padding, due_crc, masked_mean, masked_sum, per_record, records
from trainer.state import TrainState
from trainer.task import Batch, Step, Task, Variables

__all__ = ["BAD_ROWS", "CRC_SUM", "FINITE", "RECORDS", "EvalState", "Step", "eval_step", "train_step"]

FINITE, RECORDS, BAD_ROWS, CRC_SUM = "_finite", "_records", "_bad_rows", "_crc_sum"


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
    """(EvalState, batch) -> the same state and masked sums: loss, every metric, and the proof's `_records`,
    `_bad_rows` and `_crc_sum`. The state goes through so that both steps run in one loop; donated, it costs no copy."""

    def step(state: EvalState, batch: Batch) -> tuple[EvalState, dict[str, jax.Array]]:
        proof = {RECORDS: records(batch), BAD_ROWS: bad_rows(batch), CRC_SUM: due_crc(batch)}
        batch = blank_padding(batch, state.padding)
        losses, _, outputs = task.loss_fn(state.variables, batch, jax.random.key(0), False)
        values = per_record(losses, outputs, batch, task.metrics)
        return state, {name: masked_sum(value, batch["_mask"]) for name, value in values.items()} | proof

    return step


def _all_finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats] or [True]))
