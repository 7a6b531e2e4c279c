"""Decisions by the clock: how long a dispatch is, when a checkpoint is due, when the time is over."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from pipeline.errors import HostError
from trainer.checkpointing.manager import CheckpointManager
from trainer.cluster.exchange import Preemption, SharedDecisions
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.cluster.store import LocalStore
from trainer.loop.dispatching import MEASURED_STEPS, Marks, timed_plan
from trainer.modes.session import Begun
from trainer.modes.train_loop import Pace, TrainLoop
from trainer.trainer import Trainer


@pytest.mark.parametrize(("most", "steps"), [(1000, 40), (30, 30)])
def test_steps_per_dispatch_follow_from_the_measured_steps_without_the_first(most, steps):
    times = iter([100.0, *(100.0 + 0.25 * i for i in range(1, 10))])
    pace = Pace(10.0, lambda steps: min(steps, most), clock=lambda: next(times))
    for _ in range(10):
        pace.observe()
    with HostWatchdog(10.0, store=LocalStore()) as watchdog:
        assert pace.agree(watchdog.exchange, 1.0) == steps
    pace.settle(40)
    pace.observe()  # no more than the first are measured
    assert pace.steps() == 40


def test_all_hosts_use_the_steps_per_dispatch_of_host_0():
    store, clocks = LocalStore(), [iter([0.0, 1.0]), iter([0.0, 5.0])]

    def agreed(host):
        pace = Pace(10.0, lambda steps: steps, clock=lambda: next(clocks[host]))
        pace.observe()
        pace.observe()
        with HostWatchdog(20.0, store=store.view(host, 2)) as watchdog:
            return pace.agree(watchdog.exchange, 10.0)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(agreed, (0, 1))) == [10, 10]


def test_a_host_fails_if_host_0_does_not_report_the_step_time():
    text = "host 0 of 2 did not report within 0.2 s how long a step takes"
    with HostWatchdog(20.0, store=LocalStore().view(1, 2)) as watchdog, pytest.raises(HostError, match=text):
        Pace(10.0, lambda steps: steps).agree(watchdog.exchange, 0.2)


def test_a_timed_plan_measures_single_steps_and_then_dispatches_equal_loops():
    assert list(timed_plan(3, 50, lambda: 8)) == [1] * MEASURED_STEPS + [8] * 4 + [1] * 5
    assert list(timed_plan(0, 30, lambda: 8, Marks([20]))) == [1] * 10 + [8, 1, 1] + [8, 1, 1]
    assert list(timed_plan(0, 7, lambda: pytest.fail("it is asked"))) == [1] * 7


def test_a_timed_run_may_end_before_it_is_measured(dense_task, vector_input, config):
    result = Trainer(dense_task, config(iterations_per_loop="1h")).train(vector_input, max_steps=4)
    assert (result.step, result.executables) == (4, 1)


def test_max_time_ends_a_training_with_a_checkpoint_from_which_it_resumes(dense_task, vector_input, config, caplog):
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

    class Loop(TrainLoop):
        def _save(self, step, state):
            saved.append(step)

    store, settings = LocalStore(), config(checkpoint_every_steps=None, **every)
    with Preemption(store=store) as preemption, HostWatchdog(10.0, store=store) as watchdog:
        session = SimpleNamespace(
            job=SimpleNamespace(config=settings),
            decisions=SharedDecisions(watchdog.exchange, preemption),
            checkpoints=SimpleNamespace(settle=lambda: None),
        )
        profile = SimpleNamespace(stops=(), at=lambda step: None)
        parts = dict.fromkeys(["program", "monitor", "recorder", "began"]) | {"profile": profile}
        loop = Loop(session, None, Begun(0, None, None), 100, clock=lambda: now, **parts)
        for step in range(1, 36):
            now += tick
            if loop.due(step, False):
                loop.act(step, None)
    assert saved == expected


def test_checkpoints_by_the_clock_are_saved_in_addition_to_those_by_steps(dense_task, vector_input, config):
    settings = config(iterations_per_loop=1, checkpoint_every="0.001s", checkpoint_every_steps=5, keep_max=100)
    Trainer(dense_task, settings).train(vector_input, max_steps=8)
    steps = CheckpointManager(settings).steps()
    assert {5, 8} < set(steps)
