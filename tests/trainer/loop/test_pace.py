"""Decisions by the clock, and training without a last step: the input ends it."""

import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import numpy as np
import pytest
from host_stores import exchanges_of

from pipeline.errors import HostError, OptionError
from trainer.checkpointing.manager import CheckpointManager
from trainer.hosts.exchange import Decision, SharedDecisions
from trainer.loop.dispatching import MEASURED_STEPS, Marks, timed_plan
from trainer.loop.pace import Pace
from trainer.loop.schedule import Schedule
from trainer.trainer import Trainer


@pytest.mark.parametrize(("most", "steps"), [(1000, 40), (30, 30)])
def test_steps_per_dispatch_follow_from_the_measured_steps_without_the_first(most, steps):
    times = iter([100.0, *(100.0 + 0.25 * i for i in range(1, 10))])
    pace = Pace(10.0, lambda steps: min(steps, most), clock=lambda: next(times))
    for _ in range(10):
        pace.observe()
    assert pace.agree(exchanges_of(1)[0], 1.0) == steps
    pace.settle(40)
    pace.observe()  # no more than the first are measured
    assert pace.steps() == 40


def test_all_hosts_use_the_steps_per_dispatch_of_host_0():
    clocks = [iter([0.0, 1.0]), iter([0.0, 5.0])]

    def agreed(exchange):
        pace = Pace(10.0, lambda steps: steps, clock=lambda: next(clocks[exchange.index]))
        pace.observe()
        pace.observe()
        return pace.agree(exchange, 10.0)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(agreed, exchanges_of(2))) == [10, 10]


def test_a_host_fails_if_host_0_does_not_report_the_step_time():
    text = "host 0 of 2 did not make the same call within 0.2 s"
    with pytest.raises(HostError, match=text):
        Pace(10.0, lambda steps: steps).agree(exchanges_of(2)[1], 0.2)


def test_a_timed_plan_measures_single_steps_and_then_dispatches_equal_loops():
    assert list(timed_plan(3, 50, lambda: 8)) == [1] * MEASURED_STEPS + [8] * 4 + [1] * 5
    assert list(timed_plan(0, 30, lambda: 8, Marks([20]))) == [1] * 10 + [8, 1, 1] + [8, 1, 1]
    assert list(timed_plan(0, 7, lambda: pytest.fail("it is asked"))) == [1] * 7


def test_a_timed_run_may_end_before_it_is_measured(dense_task, vector_input, config):
    result = Trainer(dense_task, config(iterations_per_loop="1h")).train(vector_input, max_steps=4)
    assert (result.step, result.executables) == (4, 1)


def test_max_time_ends_a_training_with_a_checkpoint_from_which_it_resumes(
    dense_task, vector_input, config, caplog
):
    settings = config(max_time="0.01s")
    trainer = Trainer(dense_task, settings)
    result = trainer.train(vector_input, max_steps=10**6)
    assert result.stopped == "max_time=0.01s is over"
    assert 0 < result.step < 10**6
    assert CheckpointManager(settings).steps() == [result.step]
    assert trainer.train(vector_input, max_steps=10**6).start_step == result.step


@pytest.mark.parametrize(
    ("every", "tick", "expected"),
    [
        ({"checkpoint_every": "10s"}, 1.0, [10, 20, 30]),
        ({}, 60.0, [10, 20, 30]),  # ten minutes by default
        ({"checkpoint_every": None}, 3600.0, []),
    ],
)
def test_checkpoints_by_the_clock_have_the_given_interval(config, every, tick, expected):
    now, saved = 0.0, []
    settings = config(checkpoint_every_steps=None, **every)
    schedule = Schedule(
        settings, SharedDecisions(exchanges_of(1)[0], lambda: None), 0, 100, clock=lambda: now
    )
    for step in range(1, 36):
        now += tick
        if schedule.due(step, False).save:
            saved.append(step)
            schedule.saved(step)
    assert saved == expected


def test_a_process_that_was_asked_to_end_saves_but_does_not_evaluate(config):
    settings = config(checkpoint_every_steps=None)

    def due_at_5(asked):
        decisions = SharedDecisions(exchanges_of(1)[0], lambda: asked)
        return Schedule(settings, decisions, 0, 100, evaluate_every=5).due(5, False)

    assert due_at_5(None)[:3] == (True, True, True)
    assert due_at_5(Decision(True, "SIGTERM", preempted=True))[:3] == (True, True, False)


@pytest.mark.slow
def test_checkpoints_by_the_clock_are_saved_in_addition_to_those_by_steps(
    dense_task, vector_input, config
):
    settings = config(
        iterations_per_loop=1, checkpoint_every="0.001s", checkpoint_every_steps=5, keep_max=100
    )
    Trainer(dense_task, settings).train(vector_input, max_steps=8)
    steps = CheckpointManager(settings).steps()
    assert {5, 8} < set(steps)


LAST = 7


def finite(vector_input):
    """The first batches of the input, which has positions."""

    def input_fn(ctx):
        source = vector_input(ctx)
        endless = source.batches
        source.batches = lambda position: itertools.islice(
            endless(position), max(0, LAST - position)
        )
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


@pytest.mark.parametrize(("kind", "loop"), [(finite, 1), (finite, "1h"), (plain, 3)])
def test_training_without_an_end_step_trains_every_batch_and_saves(
    dense_task, vector_input, config, straight, caplog, kind, loop
):
    settings = config(checkpoint_every_steps=None, loop_mode="scan", iterations_per_loop=loop)
    trainer = Trainer(dense_task, settings)
    with caplog.at_level(logging.INFO, "trainer"):
        result = trainer.train(kind(vector_input))
    assert (result.start_step, result.step, result.stopped) == (0, LAST, None)
    assert bits(result) == bits(straight)
    assert f"the input ended at step {LAST}" in caplog.text
    assert trainer.evaluate(vector_input).step == LAST


@pytest.mark.slow
def test_a_stopped_run_resumes_and_trains_to_the_end_of_the_input(
    dense_task, vector_input, config, straight
):
    trainer = Trainer(dense_task, config(iterations_per_loop=3))
    trainer.train(finite(vector_input), steps=5)
    assert bits(trainer.train(finite(vector_input))) == bits(straight)


@pytest.mark.slow
def test_at_the_end_of_the_input_there_is_nothing_left_to_train(
    dense_task, vector_input, config, caplog
):
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


@pytest.mark.slow
def test_a_missed_evaluation_at_the_end_of_the_input_is_caught_up(dense_task, vector_input, config):
    trainer = Trainer(dense_task, config())
    trainer.train(finite(vector_input))
    made_up = trainer.train_and_evaluate(finite(vector_input), vector_input, eval_every_steps=3)
    assert [each.step for each in made_up.evaluations] == [LAST]


def test_an_input_that_never_ends_needs_a_last_step(dense_task, vector_input, config):
    with pytest.raises(OptionError, match="the input never ends"):
        Trainer(dense_task, config()).train(vector_input)
    overfitting = replace(config(), overfit_batches=2)
    with pytest.raises(OptionError, match="the input never ends"):
        Trainer(dense_task, overfitting).train(finite(vector_input))
