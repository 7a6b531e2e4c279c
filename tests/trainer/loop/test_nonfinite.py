"""Steps whose numbers are not finite: named, skipped or ignored, and never saved by accident."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.errors import NanError
from trainer.callbacks import Callback
from trainer.checkpointing.manager import CheckpointManager
from trainer.trainer import Trainer

SOUND, NAN_LOSS, NAN_GRADIENT, HUGE_GRADIENT = range(4)


@pytest.fixture(scope="module")
def task(dense_task):
    """The dense task with SGD; the batch's "poison" says what breaks in its step, so that all tests share programs."""

    def loss_fn(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        poison, params = batch["poison"], variables.params
        losses = jnp.where(poison == NAN_LOSS, jnp.nan, losses)
        # The gradient of sqrt at 0 is infinite, times 0 is NaN; its value is 0.
        zero = jnp.where(poison == NAN_GRADIENT, 0.0, 1.0) * sum(
            jnp.sum(p**2) for p in jax.tree.leaves(params)
        )
        losses = losses + jnp.where(poison == NAN_GRADIENT, jnp.sqrt(zero), 0.0)
        return (
            losses + jnp.where(poison == HUGE_GRADIENT, 1e25, 0.0) * jnp.sum(params["a"]),
            after,
            outputs,
        )

    return replace(dense_task, loss_fn=loss_fn, optimizer=optax.sgd(0.01))


@pytest.fixture
def poisoned(vectors, make_input):
    """poisoned(kind, is_bad): an input_fn whose batches poison the steps for which is_bad(step) is true."""

    def input_fn_of(kind=SOUND, is_bad=lambda step: False):
        def input_fn(ctx):
            source = make_input(vectors | {"poison": np.full(100, SOUND, np.int32)}, ctx)
            batches = source.batches

            def with_poison(position):
                for step, batch in enumerate(batches(position), start=position + 1):
                    yield batch | {
                        "poison": np.full_like(batch["poison"], kind if is_bad(step) else SOUND)
                    }

            source.batches = with_poison
            return source

        return input_fn

    return input_fn_of


@pytest.mark.parametrize(
    ("kind", "k", "text"),
    [
        (NAN_LOSS, 5, "after step 18 the loss is nan. No checkpoint contains it"),
        (NAN_GRADIENT, 1, r"after step 18 the gradient of a is not finite \(the loss is \d"),
    ],
)
def test_a_nan_is_reported_with_its_step_and_origin_and_never_saved(
    task, poisoned, config, kind, k, text
):
    settings = config(iterations_per_loop=k, checkpoint_every_steps=10)
    with pytest.raises(NanError, match=text):
        Trainer(task, settings).train(poisoned(kind, lambda step: step == 18), max_steps=20)
    assert CheckpointManager(settings).steps() == [10]
    lines = Path(settings.workdir, "train", "metrics.jsonl").read_text().splitlines()
    # the broken one is the last that is told
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 19))


def test_a_gradient_that_the_optimizer_mends_is_named_all_the_same(task, poisoned, config):
    task = replace(task, optimizer=optax.chain(optax.zero_nans(), optax.sgd(0.01)))
    with pytest.raises(NanError, match="after step 3 the gradient of a is not finite"):
        Trainer(task, config()).train(poisoned(NAN_GRADIENT, lambda step: step == 3), max_steps=5)


def test_a_skipped_step_changes_nothing_but_its_number(task, poisoned, config, caplog):
    states = []

    class Kept(Callback):
        def on_checkpoint(self, end):
            states.append(jax.tree.map(np.array, end.state))

    settings = config(on_nan="skip", checkpoint_every_steps=6)
    Trainer(task, settings, callbacks=[Kept()]).train(
        poisoned(NAN_GRADIENT, lambda step: step == 7), max_steps=7
    )
    before, skipped = states
    assert (before.step, skipped.step) == (6, 7)
    for left, right in zip(jax.tree.leaves(before[1:]), jax.tree.leaves(skipped[1:]), strict=True):
        assert left.tobytes() == right.tobytes()
    assert "after step 7 the gradient of a is not finite" in caplog.text
    assert "skipped the step (1 so far)" in caplog.text


def test_a_non_finite_optimizer_state_is_detected_before_saving(dense_task, vector_input, config):
    def init(params):
        return {"trace": jnp.zeros(())}

    def update(updates, state, params=None):
        return updates, {
            "trace": state["trace"] + jnp.where(params["a"].sum() > -1e9, jnp.inf, 0.0)
        }

    task = replace(
        dense_task,
        optimizer=optax.chain(optax.GradientTransformation(init, update), optax.sgd(0.01)),
    )
    settings = config(checkpoint_every_steps=2)
    with pytest.raises(
        NanError,
        match="at step 2 optimizer/0/trace is not finite, though the loss, the gradients and",
    ):
        Trainer(task, settings).train(vector_input, max_steps=4)
    assert CheckpointManager(settings).steps() == []


@pytest.fixture(scope="module")
def breaking_task(dense_task):
    """The update of step 6 makes one weight infinite, which tanh hides from what comes after."""

    def update(updates, state, params=None):
        first = updates["a"].at[0, 0].add(jnp.where(state == 5, jnp.inf, 0.0))
        return updates | {"a": first}, state + 1

    breaking = optax.GradientTransformation(lambda params: jnp.int32(0), update)
    return replace(dense_task, optimizer=optax.chain(optax.sgd(0.01), breaking))


# Dispatches of three steps begin anew after a checkpoint: step 6 is the first of one, or the last before a checkpoint.
@pytest.mark.slow
@pytest.mark.parametrize(("every", "saved"), [(5, [5]), (6, [])])
def test_a_model_that_its_update_breaks_is_named_with_that_step_and_never_saved(
    breaking_task, vector_input, config, every, saved
):
    settings = config(iterations_per_loop=3, checkpoint_every_steps=every)
    with pytest.raises(NanError, match="after step 6 params/a is not finite"):
        Trainer(breaking_task, settings).train(vector_input, max_steps=9)
    assert CheckpointManager(settings).steps() == saved


def test_an_update_that_breaks_the_model_is_skipped(breaking_task, vector_input, config, caplog):
    result = Trainer(breaking_task, config(on_nan="skip")).train(vector_input, max_steps=7)
    # The optimizer's count is not counted up either, so all that come are broken.
    assert [f"after step {step} params/a" in caplog.text for step in (5, 6, 7)] == [
        False,
        True,
        True,
    ]
    assert np.isfinite(result.state.variables.params["a"]).all()


def test_gradients_whose_norm_overflows_are_finite(task, poisoned, config):
    result = Trainer(task, config()).train(
        poisoned(HUGE_GRADIENT, lambda step: step == 3), max_steps=3
    )
    assert (result.step, result.metrics["grad_norm"]) == (3, float("inf"))


@pytest.mark.slow
def test_a_run_that_skips_100_consecutive_steps_ends(task, poisoned, config):
    with pytest.raises(
        NanError, match="as in the 100 steps before it. Skipping steps does not help here"
    ):
        Trainer(task, config(on_nan="skip")).train(
            poisoned(NAN_LOSS, lambda step: step > 6), max_steps=120
        )


@pytest.mark.slow
def test_non_consecutive_skipped_steps_do_not_end_the_run(task, poisoned, config, caplog):
    trainer = Trainer(task, config(on_nan="skip", iterations_per_loop=10))
    assert trainer.train(poisoned(NAN_LOSS, lambda step: step % 2), max_steps=202).step == 202
    assert "skipped the step (101 so far)" in caplog.text


def test_training_continues_and_saves_if_nan_is_ignored(task, poisoned, config, caplog):
    settings = config(on_nan="ignore")
    result = Trainer(task, settings).train(poisoned(NAN_LOSS, lambda step: step == 3), max_steps=3)
    assert np.isnan(result.metrics["loss"])
    assert "after step 3" not in caplog.text
    assert CheckpointManager(settings).steps() == [3]
