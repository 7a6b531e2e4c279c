"""Checkpoints are evaluated as they come, by one program, from a process that only reads them.

The checkpoints of one training are put into work directories one by one, as a training does: by a rename."""

import json
import logging
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from host_stores import stores_of

from pipeline.errors import CheckpointError, HostError, OptionError
from trainer.checkpointing.manager import CheckpointManager
from trainer.checkpointing.owner import Ownership
from trainer.config import TrainerConfig
from trainer.hosts.exchange import SharedDecisions
from trainer.hosts.exits import WATCHER, Preempted
from trainer.hosts.supervisor import Supervisor
from trainer.loop import evaluate as evaluating
from trainer.loop.session import Session
from trainer.trainer import Trainer

STEPS = 4
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def trained(dense_task, vector_input, tmp_path_factory):
    """A trainer with a checkpoint of each step 1..4. Do not train it."""
    settings = {"global_batch_size": 16, "checkpoint_every_steps": 1, "keep_max": STEPS}
    trainer = Trainer(
        dense_task, TrainerConfig(workdir=str(tmp_path_factory.mktemp("trained")), **settings)
    )
    trainer.train(vector_input, max_steps=STEPS)
    return trainer


@pytest.fixture
def put(trained, config):
    """put(step): that checkpoint appears in the work directory; config() has the same."""

    def put(step, workdir=None):
        checkpoints = Path(workdir or config().workdir, "checkpoints")
        shutil.copytree(
            Path(trained.config.workdir, "checkpoints", str(step)),
            checkpoints / f"{step}.incomplete",
        )
        return (checkpoints / f"{step}.incomplete").rename(checkpoints / str(step))

    return put


@pytest.fixture
def follower(dense_task, config):
    return Trainer(dense_task, config(max_steps=STEPS))


@pytest.fixture
def compiled():
    """Grows by one with every program that is compiled."""
    seen = []

    def listen(event, seconds, **_):
        if event == COMPILED:
            seen.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_each_new_checkpoint_is_evaluated_by_one_program_until_the_last_step(
    follower, trained, put, vector_input, caplog, compiled
):
    opened = []

    def counted(ctx):
        opened.append(sum(array.nbytes for array in jax.live_arrays()))
        return vector_input(ctx)

    put(1)
    with caplog.at_level(logging.INFO, "trainer"):
        results = follower.evaluate_continuously(counted, name="small", poll_seconds=0.1)
        found = [next(results)]
        programs = len(compiled)
        put(2)
        put(3)
        found.append(next(results))
        put(4)
        found.extend(results)
    assert [result.step for result in found] == [1, 3, 4]
    assert len(compiled) == programs > 0
    assert opened == opened[:1] * 3  # no state is kept while the next is restored
    assert "evaluating step 3; skipped: the checkpoints of steps [2]" in caplog.messages
    assert "the checkpoint of step 4 is the last (max_steps=4)" in caplog.messages
    for result in found:
        assert result.metrics == trained.evaluate(vector_input, step=result.step).metrics
        assert result.proven
    lines = Path(follower.config.workdir, "eval_small", "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3, 4]


def test_an_input_of_another_size_gets_a_program_of_its_own(follower, put, vectors, make_input):
    sizes = iter((100, 40))

    def input_fn(ctx):
        count = next(sizes)
        return make_input({key: array[:count] for key, array in vectors.items()}, ctx)

    put(1)
    results = follower.evaluate_continuously(input_fn, poll_seconds=0.1)
    first = next(results)
    put(4)
    assert (first.records, next(results).records) == (100, 40)


def test_following_a_run_does_not_change_its_checkpoints(follower, put, vector_input):
    put(4)
    checkpoints = Path(follower.config.workdir, "checkpoints")
    put(1)

    def there():
        return {path: path.stat().st_mtime_ns for path in (checkpoints, *checkpoints.rglob("*"))}

    before = there()
    assert [result.step for result in follower.evaluate_continuously(vector_input)] == [4]
    assert there() == before
    # The last is for keep_best, by which the training keeps the checkpoint that this process found best.
    written = {"_owner", "checkpoints", "eval", "eval_result.json", "evaluations.json"}
    assert {path.name for path in checkpoints.parent.iterdir()} == written


def test_a_follower_waits_for_a_work_directory_that_does_not_exist_yet(follower, put, vector_input):
    workdir = Path(follower.config.workdir)
    later = threading.Timer(0.5, lambda: None if workdir.exists() else put(4))
    later.start()
    results = list(
        follower.evaluate_continuously(vector_input, poll_seconds=0.1, timeout_seconds=60)
    )
    later.join()
    assert [result.step for result in results] == [4]


def test_a_follower_of_epochs_does_not_end_at_the_steps_that_they_replace(
    follower, put, dense_task, vector_input, caplog
):
    put(4)  # max_steps
    of_epochs = Trainer(dense_task, replace(follower.config, max_epochs=9))
    assert len([*of_epochs.evaluate_continuously(vector_input, timeout_seconds=0.1)]) == 1
    assert "no new checkpoint for 0.1 s" in caplog.text


def test_a_follower_ends_with_a_message_if_no_new_checkpoint_appears(
    follower, put, vector_input, caplog
):
    put(1)
    results = list(
        follower.evaluate_continuously(vector_input, timeout_seconds=0.3, poll_seconds=0.1)
    )
    assert [result.step for result in results] == [1]
    assert (
        "no new checkpoint for 0.3 s (timeout_seconds); the evaluation ends with step 1"
        in caplog.text
    )


def test_a_follower_fails_if_no_checkpoint_ever_appears(follower, vector_input):
    with pytest.raises(
        CheckpointError, match=r"checkpoints has no checkpoint, and none came within 0.2 s"
    ):
        next(follower.evaluate_continuously(vector_input, timeout_seconds=0.2))
    assert not Path(follower.config.workdir).exists()


def test_a_checkpoint_removed_while_it_is_read_is_skipped_for_a_newer_one(
    follower, put, vector_input, caplog
):
    first = put(1)

    def input_fn(ctx):
        if first.exists():  # between the choice of the checkpoint and its restoring
            shutil.rmtree(first)
            put(4)
        return vector_input(ctx)

    with caplog.at_level(logging.INFO, "trainer"):
        results = list(follower.evaluate_continuously(input_fn, poll_seconds=0.1))
    assert [result.step for result in results] == [4]
    assert (
        "the checkpoint of step 1 was removed while it was read; continuing with a newer one"
        in caplog.messages
    )


@pytest.mark.slow
def test_a_checkpoint_being_removed_is_not_reported_as_damaged(follower, put, vector_input):
    first = put(1)

    def input_fn(ctx):
        if (first / "state").exists():
            shutil.rmtree(first / "state")
            put(4)
            threading.Timer(0.5, shutil.rmtree, [first]).start()
        return vector_input(ctx)

    assert [
        result.step for result in follower.evaluate_continuously(input_fn, poll_seconds=0.1)
    ] == [4]


def test_a_damaged_checkpoint_is_an_error_that_names_it(follower, put, vector_input, monkeypatch):
    monkeypatch.setattr(evaluating, "REMOVAL_SECONDS", 0.3)
    shutil.rmtree(put(1) / "state")
    with pytest.raises(CheckpointError, match="checkpoints/1/state/_METADATA is missing"):
        next(follower.evaluate_continuously(vector_input))


def test_a_follower_may_be_closed_between_two_results(follower, put, vector_input):
    put(1)
    results = follower.evaluate_continuously(vector_input)
    next(results)
    results.close()
    put(4)
    assert next(follower.evaluate_continuously(vector_input)).step == 4


@pytest.mark.parametrize("name", ["", "a/b", "é", "x" * 101, 5])
def test_an_evaluation_name_that_is_not_a_valid_directory_name_is_refused(
    follower, vector_input, name
):
    for session in (follower.evaluate, follower.evaluate_continuously):
        with pytest.raises(
            OptionError, match=r"cannot name a directory. Allowed: up to 100 letters, digits"
        ):
            session(vector_input, name=name)


def test_a_poll_interval_of_zero_is_refused(follower, vector_input):
    with pytest.raises(OptionError, match="poll_seconds=0 must be above 0"):
        follower.evaluate_continuously(vector_input, poll_seconds=0)


@contextmanager
def call_of(store, config):
    host, job = Supervisor(config, store=store), SimpleNamespace(config=config)
    host.exchange.call = 0
    with WATCHER.watching(host):
        decisions = SharedDecisions(host.exchange, host.asked_anywhere)
        yield Session(job, host, decisions, CheckpointManager(config), Ownership(config.workdir))


def test_host_0_tells_all_hosts_which_checkpoint_is_next(trained):
    def next_step(store, last):
        host = store.index
        config = replace(trained.config, stall_seconds=20.0)
        config = config if host == 0 else replace(config, workdir="/nowhere")
        with call_of(store, config) as session:
            return evaluating._next_step(session, last, 0.3, 0.1)

    with ThreadPoolExecutor(2) as pool:
        for last, expected in ((None, STEPS), (STEPS, None)):
            assert list(pool.map(next_step, stores_of(2), (last, last))) == [expected] * 2


def test_a_host_fails_if_host_0_does_not_choose_a_checkpoint_in_time(trained):
    text = "host 0 of 2 did not make the same call within 0.2 s"
    config = replace(trained.config, stall_seconds=0.2)
    with call_of(stores_of(2)[1], config) as session, pytest.raises(HostError, match=text):
        evaluating._next_step(session, None, 60.0, 0.1)


def test_sigterm_ends_a_follower_that_waits_for_the_next_checkpoint(follower, vector_input):
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(Preempted):
            next(follower.evaluate_continuously(vector_input, timeout_seconds=30, poll_seconds=20))
    finally:
        timer.join()
        WATCHER.terminated = False
