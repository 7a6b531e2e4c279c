"""A training on a program of tf.data resumes with a saved state of its iterator, or runs it again, to the same bits."""

import logging
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline import tf_data
from pipeline.errors import StorageError
from pipeline.inputs import iterator_states
from pipeline.tf_cpu import tf
from trainer.callbacks import Callback
from trainer.checkpointing import iterator_files
from trainer.hosts.exits import WATCHER, Preempted
from trainer.trainer import Trainer

STOP, END = 60, 100
AGAIN = "runs from its beginning"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(iterator_states, "EVERY_SECONDS", 0.0)


class Trusting(Callback):
    """Waits until the first state has been tested."""

    def __init__(self, source):
        self.source = source

    def on_loop_end(self, end):
        until = time.monotonic() + 20
        while end.step == 40 and self.source[-1].iterator_states.obstacle != "":
            assert time.monotonic() < until
            time.sleep(0.01)


class AtStep(Callback):
    def on_loop_end(self, end):
        if end.step == 68:
            os.kill(os.getpid(), signal.SIGTERM)
            until = time.monotonic() + 20
            while not WATCHER._of_main[-1]._asked:
                assert time.monotonic() < until
                time.sleep(0.01)


@pytest.fixture
def train(dense_task, config, vectors):
    """train(name, step) -> the bits of the parameters after that step."""

    def run(name, step, *callbacks, **settings):
        made = []

        def training(ctx):
            program = tf.data.Dataset.from_tensor_slices(vectors).shuffle(64, seed=2)
            batches = tf_data.training_batches(program, 16, ctx.hosts)
            made.append(batches.infeed_input)
            return batches

        options = {"iterations_per_loop": 4, "checkpoint_every_steps": 20} | settings
        trainer = Trainer(
            dense_task, config(name, **options), callbacks=[Trusting(made), *callbacks]
        )
        params = trainer.train(training, max_steps=step).state.variables.params
        return {key: np.asarray(array).tobytes() for key, array in params.items()}

    return run


@pytest.fixture
def straight(train):
    return train("straight", END)


def states_of(workdir):
    return {path.name: path for path in (Path(workdir) / "iterators").iterdir()}


def test_a_resume_neither_runs_the_program_again_nor_changes_a_bit(
    train, straight, tmp_path, caplog
):
    train("run", STOP)
    assert sorted(states_of(tmp_path / "run")) == ["000000040-host-00000", "000000060-host-00000"]
    mine = tmp_path / "run" / "iterators" / "000000020-host-00001"
    mine.write_text("of another host")
    with caplog.at_level(logging.INFO):
        assert train("run", END) == straight
    assert AGAIN not in caplog.text
    names = sorted(states_of(tmp_path / "run"))
    assert names == ["000000020-host-00001", "000000080-host-00000", "000000100-host-00000"]


@pytest.mark.parametrize(
    "damage",
    [
        "a flipped bit",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("no file", "of another checkpoint")
        ),
    ],
)
def test_a_state_that_is_damaged_is_not_used(train, straight, tmp_path, caplog, damage):
    train("run", STOP)
    states = states_of(tmp_path / "run")
    path = states["000000060-host-00000"]
    if damage == "no file":
        path.unlink()
    elif damage == "a flipped bit":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(b"a state of another checkpoint")
    with caplog.at_level(logging.INFO):
        assert train("run", END) == straight
    what = "is missing" if damage == "no file" else "is damaged, or belongs to another checkpoint"
    assert f"{path} {what}" in caplog.text
    assert AGAIN in caplog.text


@pytest.mark.slow
def test_a_full_disk_makes_a_resume_slow_and_changes_nothing(train, straight, monkeypatch, caplog):
    def full(*_):
        raise StorageError("cannot write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(iterator_files, "write_file", full)
        train("run", STOP)
    assert "No space left on device" in caplog.text
    with caplog.at_level(logging.INFO):
        assert train("run", END) == straight
    assert AGAIN in caplog.text


@pytest.mark.slow
def test_a_run_that_is_preempted_between_two_checkpoints_resumes_with_a_state_before(
    train, straight, caplog
):
    with pytest.raises(Preempted):
        train("run", END, AtStep())
    WATCHER.terminated = False
    with caplog.at_level(logging.INFO):
        assert train("run", END) == straight
    assert AGAIN not in caplog.text


@pytest.mark.slow
def test_checkpoints_by_the_clock_have_states_too(train, straight, caplog):
    options = {"checkpoint_every_steps": None, "checkpoint_every": "0.01s"}
    train("run", STOP, **options)
    with caplog.at_level(logging.INFO):
        assert train("run", END, **options) == straight
    assert AGAIN not in caplog.text


def test_states_belong_to_the_owner_and_those_of_earlier_steps_are_swept(tmp_path):
    fences = []
    files = iterator_files.IteratorFiles(str(tmp_path), 0, lambda: fences.append(1))
    for step in (1, 2, 3):
        files.write(step, b"state", lambda: (1, 2))
    assert sorted(states_of(tmp_path)) == ["000000002-host-00000", "000000003-host-00000"]
    files.write(4, None, lambda: (2, 3))
    assert sorted(states_of(tmp_path)) == ["000000003-host-00000"]
    assert len(fences) == 4
