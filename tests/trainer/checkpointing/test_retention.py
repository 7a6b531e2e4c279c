"""Which checkpoints stay, also over restarts, and going back to an older one."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import optax
import pytest

from pipeline.errors import CheckpointError, OptionError
from trainer.checkpointing.keeping import Evaluations, KeepPolicy, best_step
from trainer.checkpointing.manager import CheckpointManager
from trainer.loop.job import Job
from trainer.mesh.placement import Placement
from trainer.metrics.classes import Accuracy, ConfusionMatrix
from trainer.metrics.means import Regression
from trainer.task import Metric, Task, Variables
from trainer.trainer import Trainer


def kept(steps, **keep):
    policy = KeepPolicy(**{"last": 1, "every": None, "best": lambda steps: None} | keep)
    stay = policy.should_preserve([SimpleNamespace(step=step) for step in steps], context=None)
    return [step for step, stays in zip(steps, stay, strict=True) if stays]


def test_the_newest_the_multiples_and_the_best_stay():
    steps = [10, 20, 25, 30, 40, 45]
    assert kept(steps) == [45]
    assert kept(steps, last=2) == [40, 45]
    assert kept(steps, last=9) == steps
    assert kept(steps, every=20) == [20, 40, 45]
    assert kept(steps, best=lambda steps: 25) == [25, 45]


def test_the_best_is_the_earliest_with_the_extreme_value_of_those_that_are_there():
    measured = {
        10: {"loss": 1.0},
        20: {"loss": 3.0},
        30: {"loss": 3.0},
        40: {"loss": 0.0},
        50: {"other": 9.0},
    }
    steps = [10, 20, 30, 50, 60]
    assert best_step(measured, steps, "loss", "max") == 20
    assert best_step(measured, steps, "loss", "min") == 10
    assert best_step(measured, steps, "accuracy", "max") is None


def test_the_best_checkpoint_stays_over_a_restart_until_a_better_one_comes(config, save):
    settings = config(keep_max=1, keep_best="accuracy", keep_best_mode="max", keep_every_steps=50)
    accuracies = {10: 0.5, 20: 0.9, 30: 0.7, 40: 0.8, 50: 0.1, 60: 0.95, 70: 0.2}
    there = []
    for step, accuracy in accuracies.items():
        save(settings, step)  # each in a call of its own, as after a restart
        with CheckpointManager(settings) as checkpoints:
            there.append(checkpoints.steps())
            checkpoints.record(step, {"accuracy": accuracy, "loss": 1.0})
    # 50 is a multiple; 20 goes when 60 turned out to be better.
    assert there == [[10], [10, 20], [20, 30], [20, 40], [20, 50], [20, 50, 60], [50, 60, 70]]
    assert CheckpointManager(settings).best() == 60
    assert Evaluations(settings.workdir).read().keys() == {50, 60, 70}


def test_the_smallest_is_the_best_where_that_is_asked_for_and_nan_never_is(config, save):
    settings = config(keep_best="loss", keep_best_mode="min")
    save(settings, 1, 2, 3)
    checkpoints = CheckpointManager(settings)
    assert checkpoints.best() is None
    for step, loss in {
        1: float("nan"),
        2: 2.0,
        3: 3.0,
    }.items():  # Python's min() would take a NaN that comes first
        checkpoints.record(step, {"loss": loss})
    assert checkpoints.best() == 2
    assert checkpoints.metrics(1) == {}


class Own(Metric):
    """A metric that does not state which values are the best."""

    def from_batch(self, outputs, batch, mask):
        return ()

    def compute(self, state):
        return {"cat": 1.0}


OF_KINDS = {
    "accuracy": Accuracy("label"),
    "regression": Regression("label"),
    "confusion": ConfusionMatrix("label"),
    "per/class": lambda *_: None,
    "own": Own(),
}


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        ("loss", None, "min"),
        ("loss", "min", "min"),
        ("loss", "max", "'max' contradicts 'loss', whose best value is the minimum. Leave it out"),
        ("accuracy", None, "max"),
        ("regression/r2", None, "max"),
        ("regression/rmse", None, "min"),
        ("regression", None, "'regression' is not a number .* Known: .* regression/r2, regr"),
        ("confusion", None, "keep_best='confusion' is not a number that an evaluation reports"),
        ("acuracy", None, "keep_best='acuracy' is not .* Did you mean 'accuracy'"),
        ("per/class/cat", "max", "keep_best='per/class/cat' is not"),
        ("per/class", None, "'per/class' needs keep_best_mode, 'max' or 'min': the metric"),
        ("per/class", "lower", "needs keep_best_mode, 'max' or 'min'"),
        ("per/class", "max", "max"),
        ("own", "min", "min"),
        ("own/cat", "min", "min"),
    ],
)
def test_the_metric_knows_what_is_best_or_the_user_says_it_before_anything_runs(
    config, metric, mode, expected
):
    task = Task(lambda rng, spec: Variables({}), lambda *_: None, optax.sgd(0.1), OF_KINDS)
    settings = config(keep_best=metric, keep_best_mode=mode)
    if expected in ("min", "max"):
        assert Job(task, settings, Placement.of()).config.keep_best_mode == expected
    else:
        with pytest.raises(OptionError, match=expected):
            Trainer(task, settings)


def test_a_metric_that_the_evaluation_does_not_have_is_named(config):
    with pytest.raises(
        OptionError,
        match=r"keep_best='acuracy' is not a metric .* Did you mean 'accuracy'\? Known:",
    ):
        CheckpointManager(config(keep_best="acuracy")).record(1, {"accuracy": 0.5, "loss": 1.0})


def test_evaluations_are_kept_in_a_bucket_too(bucket):
    evaluations = Evaluations(f"{bucket}/run")
    assert evaluations.read() == {}
    evaluations.add(10, {"loss": 1.0}, steps=[10])
    evaluations.add(20, {"loss": 2.0}, steps=[10, 20])
    evaluations.drop([10])
    assert Evaluations(f"{bucket}/run").read() == {20: {"loss": 2.0}}


def test_a_damaged_file_of_evaluations_is_named_and_may_go(config, tmp_path):
    settings = config(keep_best="loss")
    evaluations = Evaluations(settings.workdir)
    evaluations.add(10, {"loss": 1.0}, steps=[])
    path = tmp_path / "run/evaluations.json"
    path.write_bytes(path.read_bytes().replace(b"1.0", b"0.7"))
    with pytest.raises(
        CheckpointError,
        match=r"run/evaluations.json: its checksum is .* Remove it: it only records",
    ):
        evaluations.read()
    path.write_text('{"7": {"loss": 1.5}}')  # as an earlier version wrote it
    assert evaluations.read() == {7: {"loss": 1.5}}
    path.write_text('{"ten": 1}')
    with pytest.raises(
        CheckpointError,
        match=r"run/evaluations.json: ten is 1: expected object, got int\. Remove it",
    ):
        CheckpointManager(settings).record(20, {"loss": 1.0})


@pytest.fixture
def settings(config, save):
    """Of a run that has the checkpoints 10, 20, 30."""
    settings = config(keep_max=9, keep_best="accuracy", keep_best_mode="max")
    save(settings, 10, 20, 30)
    return settings


def test_newer_checkpoints_are_named_at_once_and_removed_when_the_run_first_saves(
    settings, save, caplog
):
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


def test_a_restart_with_the_same_restore_step_resumes_from_newer_checkpoints(
    settings, save, caplog
):
    back = replace(settings, restore_step=10)
    save(back, 15, 25)
    assert CheckpointManager(back).resume_step() == 25
    assert (
        "a run has already gone back to restore_step=10, so this one resumes from step 25."
        in caplog.text
    )
    assert "remove these from" in caplog.text
    assert CheckpointManager(replace(settings, restore_step=15)).resume_step() == 15


def test_a_restart_before_the_first_save_restores_restore_step_again(settings):
    back = replace(settings, restore_step=20)
    assert [CheckpointManager(back).resume_step() for _ in range(2)] == [20, 20]


def test_a_run_killed_while_removing_newer_checkpoints_restores_restore_step_again(
    settings, state_at, monkeypatch
):
    back = replace(settings, restore_step=10)
    with CheckpointManager(back) as checkpoints:
        checkpoints.resume_step()
        checkpoints.manager.delete(30)  # and no further
    assert CheckpointManager(back).resume_step() == 10


def test_a_step_that_has_no_checkpoint_is_refused_with_those_there_are(settings, config):
    with pytest.raises(
        CheckpointError, match=r"has no checkpoint of step 15\. It has: \[10, 20, 30\]"
    ):
        CheckpointManager(replace(settings, restore_step=15)).resume_step()
    with pytest.raises(CheckpointError, match="is no directory. Train first"):
        CheckpointManager(config("empty", restore_step=15)).resume_step()
