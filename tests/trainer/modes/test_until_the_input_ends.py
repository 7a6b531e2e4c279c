"""Training without a last step: the input ends it. On several hosts: tests/e2e/test_host_failures.py."""

import itertools
import logging
from dataclasses import replace

import jax
import numpy as np
import pytest

from pipeline.errors import OptionError
from trainer.trainer import Trainer

LAST = 7


def finite(vector_input):
    """The first batches of the input, which has positions."""

    def input_fn(ctx):
        source = vector_input(ctx)
        endless = source.batches
        source.batches = lambda position: itertools.islice(endless(position), max(0, LAST - position))
        source.info = replace(source.info, endless=False)
        return source

    return input_fn


def plain(vector_input):
    """The same batches without positions."""
    return lambda ctx: finite(vector_input)(ctx).batches(0)


def bits(result):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.state)]


@pytest.fixture
def straight(dense_task, vector_input, config):
    return Trainer(dense_task, config("straight")).train(vector_input, max_steps=LAST)


@pytest.mark.parametrize(
    "loop", [{"iterations_per_loop": 1}, {"iterations_per_loop": 3}, {"iterations_per_loop": "1h"}]
)
@pytest.mark.parametrize("kind", [finite, plain])
def test_training_without_an_end_step_trains_every_batch_and_saves(
    dense_task, vector_input, config, straight, caplog, kind, loop
):
    trainer = Trainer(dense_task, config(checkpoint_every_steps=None, loop_mode="scan", **loop))
    with caplog.at_level(logging.INFO, "trainer"):
        result = trainer.train(kind(vector_input))
    assert (result.start_step, result.step, result.stopped) == (0, LAST, None)
    assert bits(result) == bits(straight)
    assert f"the input ended at step {LAST}" in caplog.text
    assert trainer.evaluate(vector_input).step == LAST


def test_a_stopped_run_resumes_and_trains_to_the_end_of_the_input(dense_task, vector_input, config, straight):
    trainer = Trainer(dense_task, config(iterations_per_loop=3))
    trainer.train(finite(vector_input), steps=5)
    assert bits(trainer.train(finite(vector_input))) == bits(straight)


def test_at_the_end_of_the_input_there_is_nothing_left_to_train(dense_task, vector_input, config, caplog):
    trainer = Trainer(dense_task, config())
    trainer.train(finite(vector_input))
    with caplog.at_level(logging.INFO, "trainer"):
        again = trainer.train(finite(vector_input))
    assert (again.start_step, again.step, again.speed) == (LAST, LAST, None)
    assert f"the input ended at step {LAST}" in caplog.text


@pytest.mark.parametrize(("every", "steps"), [(3, [3, 6, 7]), (7, [7])])
def test_the_last_step_is_evaluated_exactly_once(dense_task, vector_input, config, every, steps):
    trainer = Trainer(dense_task, config())
    trained = trainer.train_and_evaluate(finite(vector_input), vector_input, eval_every_steps=every)
    assert [each.step for each in trained.evaluations] == steps
    again = trainer.train_and_evaluate(finite(vector_input), vector_input, eval_every_steps=every)
    assert again.evaluations == ()


def test_a_missed_evaluation_at_the_end_of_the_input_is_caught_up(dense_task, vector_input, config):
    trainer = Trainer(dense_task, config())
    trainer.train(finite(vector_input))
    made_up = trainer.train_and_evaluate(finite(vector_input), vector_input, eval_every_steps=3)
    assert [each.step for each in made_up.evaluations] == [LAST]


def test_an_input_that_never_ends_needs_a_last_step(dense_task, vector_input, config):
    with pytest.raises(
        OptionError, match="no end is given, and the input never ends. Give steps or max_steps to train"
    ):
        Trainer(dense_task, config()).train(vector_input)
    overfitting = replace(config(), overfit_batches=2)
    with pytest.raises(OptionError, match="the input never ends"):
        Trainer(dense_task, overfitting).train(finite(vector_input))
