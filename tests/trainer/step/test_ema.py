"""The averaged parameters: their formula, their checkpoints, and which model is evaluated."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.errors import CheckpointError, OptionError
from trainer.step.state import averaged, model_of
from trainer.task import Task, TrainState, Variables
from trainer.trainer import Trainer

DECAY = 0.9


@pytest.fixture(scope="module")
def counting():
    """w becomes 1, 2, 3, ... with the steps, and so do its predictions and losses."""

    def loss_fn(variables, batch, rng, train):
        losses = variables.params["w"] * jnp.ones(batch["_mask"].shape)
        return losses, variables, {}

    def predict_fn(variables, batch):
        return {"w": variables.params["w"] * jnp.ones(batch["_mask"].shape)}

    return Task(
        lambda *_: Variables({"w": jnp.zeros(())}), loss_fn, optax.sgd(-1.0), predict_fn=predict_fn
    )


def test_the_average_follows_its_formula(counting, vector_input, config):
    state = (
        Trainer(counting, config(ema_decay=DECAY, iterations_per_loop=7))
        .train(vector_input, max_steps=100)
        .state
    )
    average = 0.0
    for n in range(100):
        decay = min(DECAY, (1 + n) / (10 + n))
        average = decay * average + (1 - decay) * (n + 1)
    assert state.variables.params["w"] == 100
    np.testing.assert_allclose(state.ema["w"], average, rtol=1e-6)


def test_the_chosen_model_is_evaluated_and_predicts(counting, vector_input, config):
    def results(**settings):
        trainer = Trainer(counting, config(ema_decay=DECAY, **settings))
        result = trainer.train_and_evaluate(
            vector_input, vector_input, max_steps=10, eval_every_steps=5
        )
        evaluated = trainer.evaluate(vector_input)
        predicted = next(iter(trainer.predict(vector_input)))["w"]
        if result.evaluations:
            assert result.evaluations[-1].metrics == evaluated.metrics
        return evaluated.metrics, predicted, evaluated.proven

    ema, predicted, proven = results()
    assert 5 < ema["loss"] < 10
    assert predicted == pytest.approx(ema["loss"])
    assert proven
    assert results(evaluate="params") == ({"loss": 10.0}, 10.0, True)


def test_every_evaluation_of_a_plain_iterable_reads_it_again(counting, vectors, config):
    batches = [{key: array[i : i + 16] for key, array in vectors.items()} for i in range(0, 96, 16)]
    settings = config(ema_decay=DECAY, evaluate="params", checkpoint_every_steps=2)
    trainer = Trainer(counting, settings)
    result = trainer.train_and_evaluate(
        lambda ctx: iter(batches), lambda ctx: iter(batches), max_steps=6
    )
    assert [each.metrics["loss"] for each in result.evaluations] == [2.0, 4.0, 6.0]
    assert [each.records for each in result.evaluations] == [96] * 3
    assert (
        trainer.evaluate(lambda ctx: iter(batches), check_padding=True).metrics
        == result.evaluations[-1].metrics
    )


def test_a_step_that_is_skipped_does_not_change_the_average(counting, vector_input, config):
    broken = replace(counting, optimizer=optax.sgd(float("nan")))
    trainer = Trainer(broken, config(ema_decay=DECAY, on_nan="skip"))
    assert trainer.train(vector_input, max_steps=3).state.ema["w"] == 0


def test_the_average_of_bfloat16_is_kept_in_float32(dense_task):
    params = {"w": jnp.full(3, 1.0, jnp.bfloat16)}
    average = averaged({"w": jnp.zeros(3)}, params, jnp.int32(10**6), 0.999)
    np.testing.assert_allclose(average["w"], 0.001, rtol=1e-4)
    state = TrainState(jnp.int32(1), Variables(params), (), jnp.zeros(2, jnp.uint32), average)
    model = model_of(state, "ema")
    assert model.params["w"].dtype == jnp.bfloat16


def test_a_checkpoint_without_an_average_is_refused_by_a_run_with_one(
    counting, vector_input, config
):
    Trainer(counting, config()).train(vector_input, max_steps=1)
    text = "has no averaged parameters.*[Ll]eave out ema_decay"
    with pytest.raises(CheckpointError, match=text):
        Trainer(counting, config(ema_decay=DECAY)).train(vector_input, max_steps=2)


def test_a_checkpoint_with_an_average_is_refused_by_a_run_without_one(
    counting, vector_input, config
):
    Trainer(counting, config(ema_decay=DECAY)).train(vector_input, max_steps=1)
    with pytest.raises(CheckpointError, match="has averaged parameters.*ema_decay"):
        Trainer(counting, config()).evaluate(vector_input)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_refused(config, decay):
    with pytest.raises(OptionError, match=r"ema_decay=\S+ must be at least 0 and below 1"):
        config(ema_decay=decay)
