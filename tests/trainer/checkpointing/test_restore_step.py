"""restore_step goes back to an older checkpoint, says what becomes of newer ones, and loses nothing on a restart."""

import logging
from dataclasses import replace

import jax
import pytest

from pipeline.errors import CheckpointError
from trainer.checkpointing.manager import CheckpointManager
from trainer.trainer import Trainer


@pytest.fixture
def settings(config, save):
    """Of a run that has the checkpoints 10, 20, 30."""
    settings = config(keep_max=9, keep_best="accuracy")
    save(settings, 10, 20, 30)
    return settings


def test_newer_checkpoints_are_named_at_once_and_removed_when_the_run_first_saves(settings, save, caplog):
    back = replace(settings, restore_step=10)
    for step in (10, 20, 30):
        CheckpointManager(settings).record(step, {"accuracy": step / 100})
    assert CheckpointManager(back).resume_step() == 10
    assert "it removes the checkpoints after it: [20, 30]" in caplog.text
    assert CheckpointManager(back).steps() == [10, 20, 30]
    with caplog.at_level(logging.INFO, "trainer"):
        save(back, 15, 20)
    assert "removed the checkpoints of steps [20, 30]" in caplog.text
    assert CheckpointManager(back).steps() == [10, 15, 20]
    assert CheckpointManager(back).best() == 10  # the new checkpoint of step 20 was not evaluated


def test_a_restart_with_the_same_restore_step_resumes_from_newer_checkpoints(settings, save, caplog):
    back = replace(settings, restore_step=10)
    save(back, 15, 25)
    assert CheckpointManager(back).resume_step() == 25
    assert "a run has already gone back to restore_step=10, so this one resumes from step 25." in caplog.text
    assert "remove these from" in caplog.text
    assert CheckpointManager(replace(settings, restore_step=15)).resume_step() == 15


def test_a_restart_before_the_first_save_restores_restore_step_again(settings):
    back = replace(settings, restore_step=20)
    assert [CheckpointManager(back).resume_step() for _ in range(2)] == [20, 20]


def test_a_run_killed_while_removing_newer_checkpoints_restores_restore_step_again(settings, state_at, monkeypatch):
    back = replace(settings, restore_step=10)
    with CheckpointManager(back) as checkpoints:
        checkpoints.resume_step()
        checkpoints.manager.delete(30)  # and no further
    assert CheckpointManager(back).resume_step() == 10


def test_a_step_that_has_no_checkpoint_is_refused_with_those_there_are(settings, config):
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 15\. It has: \[10, 20, 30\]"):
        CheckpointManager(replace(settings, restore_step=15)).resume_step()
    with pytest.raises(CheckpointError, match="is no directory. Train first"):
        CheckpointManager(config("empty", restore_step=15)).resume_step()


def test_training_from_restore_step_repeats_the_straight_run(dense_task, vector_input, config, caplog):
    settings = config(checkpoint_every_steps=4, iterations_per_loop=1)
    straight = Trainer(dense_task, settings, jax.devices()[:1]).train(vector_input, max_steps=12)
    back = Trainer(dense_task, replace(settings, restore_step=4), jax.devices()[:1])
    with caplog.at_level(logging.INFO, "trainer"):
        resumed = back.train(vector_input, max_steps=12)
    assert "resuming from the checkpoint of step 4; changed: restore_step None -> 4" in caplog.text
    assert (resumed.start_step, resumed.step) == (4, 12)
    assert resumed.metrics == straight.metrics
    assert back.train(vector_input, max_steps=12).start_step == 12
