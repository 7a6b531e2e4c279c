"""SIGTERM and SIGINT in one process: saved, ended with its own exit, and the resumed run is the straight one. Several
processes are in tests/e2e/test_preemption_on_hosts.py, commands in tests/trainer/hosts/test_signals.py."""

import os
import signal
import threading
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from pipeline.console.interrupts import Exit
from trainer.callbacks import Callback
from trainer.checkpointing.manager import CheckpointManager
from trainer.config import TrainerConfig
from trainer.hosts.exits import WATCHER, Preempted
from trainer.loop.compiled import Compiled
from trainer.reports.segments import read_history
from trainer.trainer import Trainer

STEPS = 40
SETTINGS = {"global_batch_size": 16, "iterations_per_loop": 10, "checkpoint_every_steps": 20}


@pytest.fixture(autouse=True)
def _fresh_process():
    # tests that run in the background ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    WATCHER.terminated = (
        False  # a process that goes on after it was preempted is only found in tests
    )


def ask_to_end(number):
    """Returns once the process has heard it."""
    call, stop = WATCHER._of_main[-1], time.monotonic() + 20
    os.kill(os.getpid(), number)
    while not call._asked:
        assert time.monotonic() < stop
        time.sleep(0.01)


class AtStep(Callback):
    def __init__(self, step, number):
        self.step, self.number = step, number

    def on_loop_end(self, end):
        if self.number and end.step >= self.step:
            ask_to_end(self.number)
            self.number = 0  # a second SIGINT would end the process


class Killing:
    """An input that is a process's end: before its first batch, or its second."""

    def __init__(self, source, where, number):
        self._source, self._where, self._number = source, where, number

    def __getattr__(self, name):
        return getattr(self._source, name)

    def batches(self, position):
        for number, batch in enumerate(self._source.batches(position)):
            if (self._where, number) in (("begin", 0), ("evaluate", 1)):
                ask_to_end(self._number)
            yield batch


@pytest.fixture(scope="module")
def straight(dense_task, vector_input, tmp_path_factory):
    """The same training without a signal, with an evaluation of each checkpoint."""
    settings = TrainerConfig(workdir=str(tmp_path_factory.mktemp("straight")), **SETTINGS)
    return Trainer(dense_task, settings).train_and_evaluate(
        vector_input, vector_input, max_steps=STEPS
    )


def handlers():
    """Those of the signals, and the wakeup fd."""
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), fd


def assert_same_bits(a, b):
    for left, right in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("train", signal.SIGTERM),
        pytest.param("evaluate", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("begin", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_ends_the_call_and_the_resumed_run_is_the_straight_one(
    dense_task, vectors, make_input, config, straight, where, number, capfd
):
    def input_fn(ctx):
        source = make_input(vectors, ctx)
        mine = where == "begin" if ctx.mode == "train" else where == "evaluate"
        return Killing(source, where, number) if mine else source

    def plain(ctx):
        return make_input(vectors, ctx)

    settings = config("stopped", **SETTINGS)
    callbacks = [AtStep(13, number)] if where == "train" else []
    if where == "begin":
        # nothing to make up first
        Trainer(dense_task, settings).train_and_evaluate(plain, plain, max_steps=20)
    before = handlers()
    with pytest.raises(BaseException) as ended:
        Trainer(dense_task, settings, callbacks=callbacks).train_and_evaluate(
            input_fn, input_fn, max_steps=STEPS
        )
    last = read_history(settings.workdir).lines[-1]
    assert last.reason.partition(";")[0] == (
        "preempted: SIGTERM" if number == signal.SIGTERM else "interrupted: SIGINT"
    )
    if number == signal.SIGTERM:
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == Exit.PREEMPTED == 75
        WATCHER.terminated = False
    else:  # the program may catch it, and go on with other calls
        assert isinstance(ended.value, KeyboardInterrupt)
        assert (
            capfd.readouterr().err.count(
                "interrupted: ending; a second Ctrl-C ends the process without"
            )
            == 1
        )
    assert handlers() == before

    at = CheckpointManager(settings).steps()
    assert (at == [20]) if where != "train" else (len(at) == 1 and 13 <= at[0] < 13 + 3 * 10)
    resumed = Trainer(dense_task, settings).train_and_evaluate(plain, plain, max_steps=STEPS)
    assert resumed.start_step == at[-1]
    assert_same_bits(resumed, straight)
    # The evaluation that was cut off, or that came after, is made up: none is missing.
    evaluated = [(each.step, each.metrics) for each in resumed.evaluations]
    wanted = [(each.step, each.metrics) for each in straight.evaluations]
    # made up in the call that was preempted then
    assert evaluated == (wanted if where != "begin" else wanted[1:])


class Stalling:
    """An input whose 23rd batch comes only when it is let go; the process is asked to end while it waits for it."""

    def __init__(self, source, running, let_go, number):
        self._source, self._running, self._let_go, self._number = source, running, let_go, number

    def __getattr__(self, name):
        return getattr(self._source, name)

    def batches(self, position):
        for number, batch in enumerate(self._source.batches(position)):
            if number == 22:
                self._running.wait(60)
                threading.Timer(0.3, ask_to_end, (self._number,)).start()
                self._let_go.wait(60)
            yield batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("train", signal.SIGINT),
        ("evaluate", signal.SIGTERM),
        ("predict", signal.SIGINT),
        ("predict", signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_call_that_waits_for_its_input(
    dense_task, vectors, make_input, config, trained_workdir, straight, where, number
):
    running, let_go = threading.Event(), threading.Event()

    class Running(Callback):
        def on_loop_end(self, end):
            running.set()

    def stalling(ctx):
        return Stalling(make_input(vectors, ctx), running, let_go, number)

    def plain(ctx):
        return make_input(vectors, ctx)

    task = replace(dense_task, predict_fn=lambda variables, batch: {"sum": batch["x"].sum(1)})
    workdir = config().workdir if where == "train" else trained_workdir
    trainer = Trainer(
        task,
        TrainerConfig(
            workdir=workdir,
            global_batch_size=16,
            iterations_per_loop=10,
            eval_batch_size=4,
            predict_batch_size=4,
        ),
        callbacks=[Running()],
    )
    if where != "train":
        running.set()
    began = time.monotonic()
    with pytest.raises(Preempted if number == signal.SIGTERM else KeyboardInterrupt) as ended:
        if where == "train":
            trainer.train(stalling, max_steps=STEPS)
        else:
            list(trainer.predict(stalling)) if where == "predict" else trainer.evaluate(stalling)
    assert time.monotonic() - began < 20
    let_go.set()
    WATCHER.terminated = False
    saved, again = (
        "is saved, and the same command resumes from there",
        "a run resumes from its newest checkpoint",
    )
    assert str(ended.value).endswith(saved if where == "train" else again)
    if where == "train":
        assert CheckpointManager(config()).steps() == [20]
        assert_same_bits(trainer.train(plain, max_steps=STEPS), straight)


def test_a_process_asked_to_end_starts_no_training(dense_task, vector_input, config):
    WATCHER.terminated = True
    with pytest.raises(Preempted):
        Trainer(dense_task, config()).train(vector_input, max_steps=STEPS)
    assert CheckpointManager(config()).steps() == []


def test_a_resumed_run_knows_what_is_saved_while_it_compiles(
    dense_task, vector_input, config, monkeypatch
):
    trainer, saved = Trainer(dense_task, config()), []
    trainer.train(vector_input, max_steps=10)
    compiles = Compiled.compile
    monkeypatch.setattr(
        Compiled,
        "compile",
        lambda *args: saved.append(WATCHER._of_main[-1].activity.saved) or compiles(*args),
    )
    trainer.train(vector_input, max_steps=20)
    assert saved == [10]


def test_a_program_with_a_handler_of_its_own_keeps_it(dense_task, vector_input, config):
    heard, both = [], (signal.SIGTERM, signal.SIGINT)

    class AtEveryLook(Callback):
        def on_loop_end(self, end):
            for number in both:
                os.kill(os.getpid(), number)

    before = [signal.signal(number, lambda number, _: heard.append(number)) for number in both]
    try:
        Trainer(dense_task, config(), callbacks=[AtEveryLook()]).train(vector_input, max_steps=1)
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
    assert sorted(heard) == sorted(both)
