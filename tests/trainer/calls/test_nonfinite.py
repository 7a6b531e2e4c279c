"""Steps whose numbers are not finite: named, skipped or ignored, and never saved by accident."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.shards.errors import NanError
from trainer.checkpointing.checkpoint import Checkpoints
from trainer.trainer import Trainer


def poisoned(task, key, at):
    """The task with a NaN in the loss (key="loss") or only in the gradient (key="gradient") of the steps `at`."""

    def loss_fn(variables, batch, rng, train):
        losses, after, outputs = task.loss_fn(variables, batch, rng, train)
        count = after.extra + 1
        bad = jnp.isin(count, jnp.array(at))
        if key == "loss":
            losses = jnp.where(bad, jnp.nan, losses)
        else:  # the gradient of sqrt at 0 is infinite, times 0 is NaN; its value is 0
            zero = jnp.where(bad, 0.0, 1.0) * sum(jnp.sum(p**2) for p in jax.tree.leaves(variables.params))
            losses = losses + jnp.where(bad, jnp.sqrt(zero), 0.0)
        return losses, after._replace(extra=count), outputs

    def init(rng, spec):
        return task.init(rng, spec)._replace(extra=jnp.int32(0))

    return replace(task, init=init, loss_fn=loss_fn)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("loss", "after step 20 the loss is nan. No checkpoint holds it"),
        ("gradient", r"after step 20 the gradient of a is not finite \(the loss is \d"),
    ],
)
def test_nan_names_its_step_and_what_broke_first_and_leaves_no_checkpoint_behind(
    dense_task, vector_input, config, k, key, text
):
    settings = config(iterations_per_loop=k, checkpoint_every_steps=10)
    with pytest.raises(NanError, match=text):
        Trainer(poisoned(dense_task, key, [20]), settings).train(vector_input, max_steps=40)
    assert Checkpoints(settings).steps() == [10]
    lines = Path(settings.workdir, "train", "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))  # the broken one is the last that is told


def test_a_gradient_that_the_optimizer_mends_is_named_all_the_same(dense_task, vector_input, config):
    task = replace(poisoned(dense_task, "gradient", [7]), optimizer=optax.chain(optax.zero_nans(), optax.sgd(0.01)))
    with pytest.raises(NanError, match="after step 7 the gradient of a is not finite"):
        Trainer(task, config()).train(vector_input, max_steps=10)


def test_a_skipped_step_changes_nothing_but_its_number(dense_task, vector_input, config, caplog):
    task = poisoned(dense_task, "gradient", [7])

    def trained(steps):
        settings = config(f"{steps}", on_nan="skip", iterations_per_loop=2)
        return Trainer(task, settings).train(vector_input, max_steps=steps).state

    before, skipped = trained(6), trained(7)
    assert (int(before.step), int(skipped.step)) == (6, 7)
    for left, right in zip(jax.tree.leaves(before[1:]), jax.tree.leaves(skipped[1:]), strict=True):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    assert "after step 7 the gradient of a is not finite" in caplog.text
    assert "the step is skipped, the 1. so far" in caplog.text


def test_an_optimizer_that_breaks_by_itself_is_found_before_it_is_saved(dense_task, vector_input, config):
    def init(params):
        return {"trace": jnp.zeros(())}

    def update(updates, state, params=None):
        return updates, {"trace": state["trace"] + jnp.where(params["a"].sum() > -1e9, jnp.inf, 0.0)}

    task = replace(dense_task, optimizer=optax.chain(optax.GradientTransformation(init, update), optax.sgd(0.01)))
    settings = config(checkpoint_every_steps=10)
    with pytest.raises(
        NanError, match="at step 10 optimizer/0/trace is not finite, though the loss, the gradients and"
    ):
        Trainer(task, settings).train(vector_input, max_steps=20)
    assert Checkpoints(settings).steps() == []


@pytest.fixture
def breaking_task(dense_task):
    """breaking_task(n): the update of step n makes one weight infinite, which tanh hides from what comes after."""

    def make(at):
        def update(updates, state, params=None):
            first = updates["a"].at[0, 0].add(jnp.where(state == at - 1, jnp.inf, 0.0))
            return updates | {"a": first}, state + 1

        breaking = optax.GradientTransformation(lambda params: jnp.int32(0), update)
        return replace(dense_task, optimizer=optax.chain(optax.sgd(0.01), breaking))

    return make


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("at", [5, 7, 10])
def test_a_model_that_its_update_breaks_is_named_with_that_step_and_never_saved(
    breaking_task, vector_input, config, at, k
):
    settings = config(iterations_per_loop=k, checkpoint_every_steps=10)
    with pytest.raises(NanError, match=f"after step {at} params/a is not finite"):
        Trainer(breaking_task(at), settings).train(vector_input, max_steps=20)
    assert Checkpoints(settings).steps() == []


def test_an_update_that_breaks_the_model_is_skipped(breaking_task, vector_input, config, caplog):
    result = Trainer(breaking_task(7), config(on_nan="skip")).train(vector_input, max_steps=8)
    # The optimizer's count is not counted up either, so all that come are broken.
    assert [f"after step {step} params/a" in caplog.text for step in (6, 7, 8)] == [False, True, True]
    assert np.isfinite(result.state.variables.params["a"]).all()


def test_gradients_whose_norm_overflows_are_finite(dense_task, vector_input, config):
    def loss_fn(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        return losses + 1e25 * jnp.sum(variables.params["a"]), after, outputs

    task = replace(dense_task, loss_fn=loss_fn, optimizer=optax.sgd(1e-30))
    result = Trainer(task, config()).train(vector_input, max_steps=3)
    assert (result.step, result.metrics["grad_norm"]) == (3, float("inf"))


def test_skipping_ends_where_nothing_is_learnt_any_more(dense_task, vector_input, config):
    # What counts the steps is not counted up by a skipped one: from step 7 on all are bad.
    task = poisoned(dense_task, "loss", [7])
    with pytest.raises(NanError, match="as in the 100 steps before it. To skip them is no cure"):
        Trainer(task, config(on_nan="skip", iterations_per_loop=10)).train(vector_input, max_steps=400)


def test_skipped_steps_with_others_in_between_go_on(dense_task, vector_input, config, caplog):
    def loss_fn(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        return jnp.where(jax.random.bernoulli(rng), jnp.nan, losses), after, outputs  # about every second step

    task = replace(dense_task, loss_fn=loss_fn)
    assert Trainer(task, config(on_nan="skip", iterations_per_loop=10)).train(vector_input, max_steps=300).step == 300
    assert "the step is skipped, the 101. so far" in caplog.text


def test_ignored_nan_trains_on_and_is_saved(dense_task, vector_input, config):
    settings = config(on_nan="ignore")
    result = Trainer(poisoned(dense_task, "loss", [7]), settings).train(vector_input, max_steps=7)
    assert np.isnan(result.metrics["loss"])
    assert Checkpoints(settings).steps() == [7]
