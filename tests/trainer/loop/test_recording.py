"""The history that a training leaves: where it started, and how it ended. Signals are in test_preemption.py."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import NanError, OwnerError
from trainer.callbacks import Callback
from trainer.checkpointing.owner import Ownership
from trainer.reports.segments import End, Invocation, Start, read_history
from trainer.trainer import Trainer


class At(Callback):
    """Does something after a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_loop_end(self, end):
        if end.step == self.step:
            self.act(end)


def ends(workdir):
    return [
        (line.step, line.reason) for line in read_history(workdir).lines if isinstance(line, End)
    ]


@pytest.fixture
def trainer(dense_task, config):
    def make(*callbacks, task=dense_task, **settings):
        return Trainer(task, config(iterations_per_loop=2, **settings), callbacks=callbacks)

    return make


def test_a_start_states_the_position_the_settings_the_command_and_the_devices(
    dense_task, vector_input, config
):
    command = Invocation("dense", ["--seed", "3"], "/somewhere")
    trainer = Trainer(dense_task, config(seed=3), command=command)
    trainer.train(vector_input, max_steps=4)
    trainer.train(vector_input, max_steps=6)
    first, second = read_history(trainer.config.workdir).starts
    assert (first.step, second.step) == (0, 4)
    assert (first.position["position"], second.position["position"]) == (0, 4)
    assert (first.reported, second.reported) == (None, 4)
    assert (first.settings["seed"], first.command, first.devices) == (
        3,
        command,
        "4 x cpu, 1 process",
    )
    assert first.input is None  # this input does not tell where its records come from
    assert first.versions["jax"]
    assert ends(trainer.config.workdir) == [(4, "finished"), (6, "finished")]


def test_an_end_names_what_stopped_the_run(trainer, vector_input):
    stopped = trainer(At(2, lambda end: end.stop("good enough")))
    stopped.train(vector_input, max_steps=8)
    # the dispatch after that of step 2 was already running
    assert ends(stopped.config.workdir) == [(4, "good enough")]


def test_an_error_is_the_reason_of_its_end(trainer, vector_input, dense_task):
    def broken(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        return losses * np.nan, after, outputs

    failed = trainer(task=replace(dense_task, loss_fn=broken))
    with pytest.raises(NanError):
        failed.train(vector_input, max_steps=4)
    ((step, reason),) = ends(failed.config.workdir)
    assert step == 2
    assert reason.startswith("after step 1 the loss is nan. No checkpoint contains it")


def test_a_run_that_lost_its_work_directory_writes_no_end(trainer, vector_input, monkeypatch):
    """The error that ends it is the new owner's."""

    def fence(self):
        if self._record and len(read_history(self._workdir).lines) > 0:
            raise OwnerError("another run has taken over")

    monkeypatch.setattr(Ownership, "fence", fence)
    ended = trainer()
    with pytest.raises(OwnerError):
        ended.train(vector_input, max_steps=4)
    assert [type(line) for line in read_history(ended.config.workdir).lines] == [Start]


def test_a_fast_dev_run_leaves_no_history(trainer, vector_input):
    tried = trainer(fast_dev_run=2)
    tried.train(vector_input)
    assert not read_history(tried.config.workdir).lines
