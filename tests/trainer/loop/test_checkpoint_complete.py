"""Callback.on_checkpoint_complete: once for every complete checkpoint, when any process can read it."""

import contextlib
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from trainer.callbacks import Callback
from trainer.checkpointing.listing import finished_steps
from trainer.checkpoints import get_variable_value
from trainer.hosts.exits import WATCHER, Preempted
from trainer.trainer import Trainer

SECONDS = 30.0


class Uploads(Callback):
    """Reads each checkpoint as another program would; the parameter "a" has to be that of the moment of the save."""

    def __init__(self):
        self.heard, self._saved = [], {}

    def on_loop_end(self, end):
        self.heard.append(("loop", end.step))

    def on_checkpoint(self, end):
        self._saved[end.step] = np.asarray(end.state.variables.params["a"])
        self.heard.append(("begun", end.step))

    def on_checkpoint_complete(self, end):
        assert threading.current_thread() is threading.main_thread()
        np.testing.assert_array_equal(
            get_variable_value(end.path, "params/a"), self._saved[end.step]
        )
        end.reports.scalars(end.step, {"uploads": 1.0})
        self.heard.append(("complete", end.step))

    @property
    def complete(self):
        return [step for kind, step in self.heard if kind == "complete"]


class Waiting:
    """Its batch of step 25 comes once the checkpoint of step 20 is complete."""

    def __init__(self, source, workdir):
        self._source, self._workdir = source, workdir

    def __getattr__(self, name):
        return getattr(self._source, name)

    def batches(self, position):
        for step, batch in enumerate(self._source.batches(position), start=1):
            until = time.monotonic() + SECONDS
            while (
                step == 25 and 20 not in finished_steps(self._workdir) and time.monotonic() < until
            ):
                time.sleep(0.01)
            yield batch


def test_each_complete_checkpoint_is_reported_once_and_in_order(dense_task, vector_input, config):
    uploads = Uploads()
    settings = config(checkpoint_every_steps=5, iterations_per_loop=5, keep_max=10)
    Trainer(dense_task, settings, callbacks=[uploads]).train(vector_input, max_steps=23)
    saves = [heard for heard in uploads.heard if heard[0] != "loop"]
    assert saves == [(kind, step) for step in (5, 10, 15, 20, 23) for kind in ("begun", "complete")]
    assert Path(settings.workdir, "train", "metrics.jsonl").read_text().count('"uploads"') == 5
    uploads.heard.clear()
    Trainer(dense_task, settings, callbacks=[uploads]).train(vector_input, max_steps=23)
    assert uploads.heard == []  # nothing was saved


def test_a_complete_checkpoint_is_reported_before_the_next_save(dense_task, vector_input, config):
    uploads = Uploads()
    settings = config(checkpoint_every_steps=20, iterations_per_loop=1, superbatch_bytes=1)
    trainer = Trainer(dense_task, settings, callbacks=[uploads])
    trainer.train(lambda ctx: Waiting(vector_input(ctx), settings.workdir), max_steps=40)
    assert uploads.complete == [20, 40]
    assert uploads.heard.index(("complete", 20)) < uploads.heard.index(("loop", 39))


@pytest.fixture
def _fresh_process():
    # tests that run in the background ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    WATCHER.terminated = False


class Ends(Callback):
    def __init__(self, how):
        self._how = how

    def on_loop_end(self, end):
        if end.step == 20 and isinstance(self._how, signal.Signals):
            os.kill(os.getpid(), self._how)
        elif end.step == 20 and self._how == "stopped":
            end.stop("enough")

    def on_checkpoint(self, end):
        if self._how == "failed":
            raise KeyError("mine")  # while the checkpoint is being written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error"), [("stopped", None), (signal.SIGTERM, Preempted), ("failed", KeyError)]
)
@pytest.mark.usefixtures("_fresh_process")
def test_every_remaining_checkpoint_was_reported_however_the_run_ended(
    dense_task, vector_input, config, how, error
):
    uploads = Uploads()
    settings = config(checkpoint_every_steps=20, iterations_per_loop=10, keep_max=10)
    trainer = Trainer(dense_task, settings, callbacks=[uploads, Ends(how)])
    with pytest.raises(error) if error else contextlib.nullcontext():
        trainer.train(vector_input, max_steps=1000)
    assert uploads.complete == finished_steps(settings.workdir)
    assert len(uploads.complete) == (1 if how == "failed" else 2)


def test_a_callback_that_raises_ends_the_run_and_is_not_called_again(
    dense_task, vector_input, config
):
    class Broken(Callback):
        asked = itertools.count(1)

        def on_checkpoint_complete(self, end):
            raise KeyError("upload", next(self.asked))

    settings = config(checkpoint_every_steps=5, iterations_per_loop=5)
    with pytest.raises(KeyError, match="'upload', 1"):
        Trainer(dense_task, settings, callbacks=[Broken()]).train(vector_input, max_steps=5)
    assert next(Broken.asked) == 2
    assert finished_steps(settings.workdir) == [5]
