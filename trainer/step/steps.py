"""The steps of training, evaluation and prediction: pure functions of carried state and a batch."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pipeline.errors import InputError
from pipeline.spec import INDEX, MASK
from trainer.config import OnNan
from trainer.inputs import LABELLED
from trainer.mesh.batch_spec import ROWS_FIRST, BatchAxes, named_leaves
from trainer.mesh.placement import Placement
from trainer.metrics import labels, tally
from trainer.step.gradients import (
    accumulated,
    called,
    first_bad,
    gradients,
    microbatches,
    read_by,
    squares,
)
from trainer.step.state import averaged
from trainer.task import Batch, PredictFn, Step, Task, TrainState, Variables, chosen, kind_of

BAD_LEAF, UNLABELLED = "_bad_leaf", "_unlabelled"
RATE = "learning_rate"
RECORDS, BAD_ROWS, CRC_SUM, UNSEEN = "_records", "_bad_rows", "_crc_sum", "_unseen"
RECORD_OUTSIDE = "_record_outside"
NOT_FINITE = "_not_finite "  # and the name of the value
ROWS = "_rows"  # what a step returns besides scalars; names of metrics do not start with _
PREDICTIONS = "_predictions"  # in the rows of an evaluation step
Tallies = dict[str, tally.Tally]


def train_step(
    task: Task,
    on_nan: OnNan = "raise",
    *,
    accumulate: int = 1,
    unroll: bool = False,
    ema_decay: float | None = None,
    axes: BatchAxes = ROWS_FIRST,
    apart: Placement | None = None,
) -> Step:
    """(TrainState, batch) -> the next state and scalars: loss, every metric with a value per
    record, grad_norm, the learning_rate if the optimizer's state has it, as with
    optax.inject_hyperparams, and `_bad_leaf`, the number of the first of the `checked_names` that
    is not finite, -1 if all are; with a target, `_unlabelled`, the number of rows without a label;
    and what counts labels outside of the classes. Metric instances are only checked.

    on_nan: with "skip", such a step changes only the step's number; with "ignore", there is no
    `_bad_leaf`. accumulate, unroll, apart: see TrainerConfig and `accumulated`. ema_decay: of the
    state's averaged parameters."""

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        batch = _augmented(task, batch, axes)
        # The key depends only on the step, so a resumed run draws the same numbers.
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        before = state.variables.params
        read = read_by(task.optimizer, before, state.optimizer)
        if accumulate == 1:
            grads, means, extra = gradients(task, state.variables, batch, rng, read=read)
        else:
            parts = microbatches(batch, accumulate, axes)
            grads, means, extra = accumulated(
                task, state.variables, parts, rng, unroll, apart, read
            )
        updates, optimizer = task.optimizer.update(grads, state.optimizer, before)
        params = optax.apply_updates(before, updates)
        ema = state.ema if ema_decay is None else averaged(state.ema, params, state.step, ema_decay)
        after = TrainState(state.step + 1, Variables(params, extra), optimizer, state.key, ema)
        of_grads = squares(grads)
        scalars = means | {"grad_norm": jnp.sqrt(sum(of_grads, jnp.float32(0)))}
        for _, rate in optax.tree_utils.tree_get_all_with_path(optimizer, RATE)[:1]:
            scalars[RATE] = rate.astype(jnp.float32)
        if task.target is not None:
            scalars[UNLABELLED] = tally.num_rows(batch[MASK]) - tally.num_rows(
                labels.counting(batch)
            )
        if on_nan == "ignore":
            return after, scalars
        bad = first_bad(means["loss"], of_grads, after.variables)
        if on_nan == "skip":
            same = state._replace(step=after.step)
            after = jax.tree.map(lambda new, old: jnp.where(bad < 0, new, old), after, same)
        return after, scalars | {BAD_LEAF: bad}

    return step


def _augmented(task: Task, batch: Batch, axes: BatchAxes) -> Batch:
    """The batch as the loss sees it in training: with blank padding, `labelled`, and augmented."""
    batch = labels.labelled(tally.blank_padding(batch, axes=axes), task.target)
    if task.augment is None:
        return batch
    augmented = task.augment(batch)
    _check_rows(augmented, batch, "augment")
    return {**augmented, **{key: value for key, value in batch.items() if key.startswith("_")}}


def eval_step(task: Task, *, with_rows: bool = False, axes: BatchAxes = ROWS_FIRST) -> Step:
    """(variables, padding, tallies, batch) -> the next tallies and masked sums: loss, every metric
    with a value per record, and `_records`, `_labelled`, `_bad_rows` and `_crc_sum` for the exact
    epoch; for each sum of floats, the number of records whose value is not finite; and what counts
    labels outside of the classes.

    padding: int32 [], the number in PADDINGS that the task sees. tallies: of each Metric, over the
    batches so far. with_rows: also `_rows`: of the batch `_mask`, without rows that lack a label,
    and `_index`, the losses, and by name the predictions that are one number per record, each
    [b]."""

    def step(
        variables: Variables, padding: Array, tallies: Tallies, batch: Batch
    ) -> tuple[Tallies, dict[str, Any]]:
        batch = labels.labelled(tally.blank_padding(batch, padding, axes), task.target)
        losses, outputs = _evaluated(task, variables, batch)
        values = tally.per_record(losses, outputs, batch, task.metrics)
        tallies = tally.with_batch(tallies, losses, outputs, batch, task.metrics)
        values |= {f"{NOT_FINITE}{name}": ~jnp.isfinite(value) for name, value in values.items()}
        counts = labels.counting(batch)
        sums = {name: tally.masked_sum(value, counts) for name, value in values.items()}
        outside = counts * sum(
            value for name, value in values.items() if name.startswith(labels.OUTSIDE)
        )
        sums[RECORD_OUTSIDE] = jnp.max(jnp.where(outside > 0, batch.get(INDEX, -1), -1))
        rows = {ROWS: _rows(task, variables, batch)} if with_rows else {}
        return tallies, sums | _proof(batch) | rows

    return step


def _rows(task: Task, variables: Variables, batch: Batch) -> dict[str, Any]:
    # Computed apart: sharing the model with the sums would save up to half of the time on a device,
    # but fuse the sums in another way, and so change the last bits of the metrics.
    variables, batch = jax.lax.optimization_barrier((variables, batch))
    losses, _ = _evaluated(task, variables, batch)
    predictions = {} if task.predict_fn is None else _predicted(task.predict_fn, variables, batch)
    numbers = {
        name: leaf
        for name, leaf in predictions.items()
        if getattr(leaf, "shape", None) == losses.shape
    }
    rows = _numbered(batch) | {MASK: labels.counting(batch)}
    return rows | {tally.LOSSES: losses.astype(jnp.float32), PREDICTIONS: numbers}


def _numbered(batch: Batch) -> dict[str, Any]:
    return {key: batch[key] for key in (MASK, INDEX) if key in batch}


def no_tallies(
    task: Task, variables: Variables, batch_spec: Any
) -> tuple[Tallies, dict[str, Array]]:
    """The tallies at the start of an epoch, and whether each is neutral: see empty_tallies. Runs
    under jit."""
    losses, outputs = jax.eval_shape(partial(_evaluated, task), variables, batch_spec)
    return tally.empty_tallies(losses, outputs, batch_spec, task.metrics)


def _evaluated(task: Task, variables: Variables, batch: Batch) -> tuple[Array, Any]:
    losses, _, outputs = called(task, variables, batch, jax.random.key(0), False)
    return losses, outputs


def predict_step(
    task: Task, keys: Sequence[str] | None, axes: BatchAxes = ROWS_FIRST
) -> Callable[[Variables, Batch], dict[str, Any]]:
    """(Variables, batch) -> what eval_step returns for the exact epoch, and `_rows`: the
    predictions with these names (None: all) and the batch's `_mask` and `_index`, each [b, ...].

    Raises OptionError for a name that the task does not predict; InputError, which names it, for
    outputs without one row per record."""

    def step(variables: Variables, batch: Batch) -> dict[str, Any]:
        assert task.predict_fn is not None
        blank = tally.blank_padding(batch, axes=axes)
        rows = chosen(_predicted(task.predict_fn, variables, blank), keys) | _numbered(batch)
        return _proof(batch) | {ROWS: rows}

    return step


def _predicted(predict: PredictFn, variables: Variables, batch: Batch) -> Mapping[str, Any]:
    predictions = predict(variables, batch)
    _check_rows(predictions, batch, "predict_fn")
    for name in predictions:
        if not isinstance(name, str) or name.startswith("_"):
            raise InputError(
                f"predict_fn names a prediction {name!r}. A name must be a str that does not start "
                "with _."
            )
    return predictions


def _check_rows(arrays: Any, batch: Batch, function: str) -> None:
    if not isinstance(arrays, Mapping):
        raise InputError(
            f"{function} returned {kind_of(arrays)}. It must return a dict such as {{'class': "
            "array}, with one row per record in every array."
        )
    rows = batch[MASK].shape
    for name, leaf in named_leaves(dict(arrays)).items():
        if jnp.shape(leaf)[:1] != rows:
            raise InputError(
                f"{function}'s {name} has the shape {list(jnp.shape(leaf))}; expected "
                f"[{rows[0]}, ...], one row per record."
            )


def _proof(batch: Batch) -> dict[str, Array]:
    sums = {
        RECORDS: tally.num_rows(batch[MASK]),
        LABELLED: tally.num_rows(labels.counting(batch)),
        BAD_ROWS: tally.bad_rows(batch),
        CRC_SUM: tally.due_crc(batch),
    }
    # 0 on padding
    return sums | ({UNSEEN: jnp.sum(batch[UNSEEN], dtype=jnp.int32)} if UNSEEN in batch else {})
