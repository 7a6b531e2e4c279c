"""A replay trains the same steps again: the bits of their losses, and a loss for each record."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from pipeline.errors import CheckpointError, NanError, OptionError
from trainer.config import TrainerConfig
from trainer.trainer import Trainer
from trainer.warm_start.config import WarmStart


def reported(workdir):
    lines = map(json.loads, Path(workdir, "train", "metrics.jsonl").read_text().splitlines())
    return {line["step"]: np.float32(line["loss"]) for line in lines}


SAVED = {"checkpoint_every_steps": 5, "iterations_per_loop": 5, "global_batch_size": 16}


@pytest.fixture(scope="module")
def run(dense_task, vector_input, tmp_path_factory):
    """A Trainer whose run saved the checkpoints of steps 5, 10 and 12. A replay does not change it."""
    trainer = Trainer(dense_task, TrainerConfig(workdir=str(tmp_path_factory.mktemp("replayed")), **SAVED))
    trainer.train(vector_input, max_steps=12)
    return trainer


def check_bits(trainer, vector_input):
    steps = list(trainer.replay(vector_input, step=8, to=11))
    assert {step.step: np.float32(step.loss) for step in steps} == {
        step: loss for step, loss in reported(trainer.config.workdir).items() if 8 <= step <= 11
    }
    assert {step.from_step for step in steps} == {5}
    for step in steps:
        assert step.losses.shape == step.record_ids.shape == (16,)
        assert step.losses.mean() == pytest.approx(step.loss, rel=1e-6)


def test_the_losses_of_a_replay_average_to_the_exact_loss_of_the_run(run, vector_input):
    before = {path: path.stat().st_mtime_ns for path in Path(run.config.workdir).rglob("*")}
    check_bits(run, vector_input)
    assert {path: path.stat().st_mtime_ns for path in Path(run.config.workdir).rglob("*")} == before


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"ema_decay": 0.9, "on_nan": "skip"}], ids=str)
def test_a_replay_with_microbatches_or_averaged_parameters_has_the_bits_of_the_run(
    dense_task, vector_input, config, settings
):
    trainer = Trainer(dense_task, config(**SAVED, **settings))
    trainer.train(vector_input, max_steps=12)
    check_bits(trainer, vector_input)


def test_a_replay_names_the_records_of_its_batch(run, vectors, make_input):
    inputs = []

    def keeping(ctx):
        inputs.append(make_input(vectors, ctx))
        return inputs[-1]

    (last,) = run.replay(keeping, step=12)
    assert last.from_step == 10
    (step,) = run.replay(keeping, step=8)
    assert step.record_ids.tolist() == inputs[1].given[2].tolist()  # the third after the checkpoint of step 5


def test_a_record_with_a_wrong_label_has_the_largest_loss_of_its_step(vectors, dense_task, make_input, config):
    labels = (vectors["x"][:, 0] > 0).astype(np.int32)
    wrong = int(np.argmax(np.abs(vectors["x"][:, 0])))
    labels[wrong] = 2
    given = {"x": vectors["x"], "label": labels}

    def input_fn(ctx):
        return make_input(given, ctx)

    trainer = Trainer(dense_task, config("mislabelled", checkpoint_every_steps=60))
    trainer.train(input_fn, max_steps=72)
    found = [step for step in trainer.replay(input_fn, step=61, to=72) if wrong in step.record_ids]
    assert found
    for step in found:
        assert step.record_ids[np.argmax(step.losses)] == wrong


def test_rows_that_do_not_count_have_no_loss(run, vectors, make_input):
    def input_fn(ctx):
        source = make_input(vectors, ctx)
        batches = source.batches

        def masked(position):
            for batch in batches(position):
                batch["_mask"][3] = 0
                yield batch

        source.batches = masked
        return source

    (step,) = run.replay(input_fn, step=11)
    assert np.flatnonzero(np.isnan(step.losses)).tolist() == [3]
    assert np.nanmean(step.losses) == pytest.approx(step.loss, rel=1e-6)


def test_a_replay_before_the_first_checkpoint_begins_with_the_initial_model(run, vector_input):
    (step,) = run.replay(vector_input, step=3)
    assert step.from_step == 0
    assert np.float32(step.loss) == reported(run.config.workdir)[3]


def test_a_replay_begins_with_the_warm_start_of_the_run(run, vector_input, dense_task, config):
    start = WarmStart(init_from=run.config.workdir)
    trainer = Trainer(dense_task, config("warm"), warm_start=start)
    trainer.train(vector_input, max_steps=4)
    (step,) = trainer.replay(vector_input, step=2)
    assert np.float32(step.loss) == reported(trainer.config.workdir)[2]


def test_a_replay_on_other_devices_agrees_within_rounding(run, vector_input, dense_task):
    (step,) = Trainer(dense_task, run.config, jax.devices()[:1]).replay(vector_input, step=9)
    assert step.loss == pytest.approx(reported(run.config.workdir)[9], rel=1e-4)


def test_a_replay_without_its_checkpoint_is_an_error_that_lists_the_kept_ones(run, dense_task, vector_input, tmp_path):
    kept = Path(shutil.copytree(run.config.workdir, tmp_path / "kept"))
    shutil.rmtree(kept / "checkpoints" / "5")
    trainer = Trainer(dense_task, replace(run.config, workdir=str(kept)))
    with pytest.raises(
        CheckpointError, match="step 8 cannot be replayed: no checkpoint of its run .* its start, after step 0"
    ):
        next(trainer.replay(vector_input, step=8))
    trainer.train(vector_input, max_steps=14)
    shutil.rmtree(kept / "checkpoints" / "12")
    with pytest.raises(CheckpointError, match=r"after step 12, and step 13\. Kept are: \[10, 14\]\. keep_every_steps"):
        next(trainer.replay(vector_input, step=14))


def test_a_replay_never_begins_with_a_checkpoint_of_another_run(run, dense_task, vector_input, tmp_path):
    """A run goes back to step 5, with another rate, and fails at step 12, before it saves: step 10 is another model."""

    def fails(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        return jax.numpy.where(batch["_index"] == failing, np.nan, losses), after, outputs

    (twelfth,) = run.replay(vector_input, step=12)
    failing = int(twelfth.record_ids[0])
    workdir = str(shutil.copytree(run.config.workdir, tmp_path / "back"))
    settings = replace(run.config, workdir=workdir, restore_step=5, checkpoint_every_steps=50)
    back = Trainer(replace(dense_task, loss_fn=fails, optimizer=optax.adam(0.5)), settings)
    with pytest.raises(NanError):
        back.train(vector_input, max_steps=20)
    (step,) = back.replay(vector_input, step=11)
    assert step.from_step == 5
    assert np.float32(step.loss) == reported(workdir)[11]


def test_steps_of_two_runs_and_steps_beyond_the_end_are_errors(run, dense_task, vector_input, tmp_path):
    workdir = str(shutil.copytree(run.config.workdir, tmp_path / "resumed"))
    trainer = Trainer(dense_task, replace(run.config, workdir=workdir))
    with pytest.raises(OptionError, match=r"step 13 was not trained: .* ended at step 12 \(finished\)"):
        next(trainer.replay(vector_input, step=13))
    trainer.train(vector_input, max_steps=14)
    with pytest.raises(OptionError, match=r"Replay --step=11 --to=12 and --step=13 --to=13"):
        next(trainer.replay(vector_input, step=11, to=13))


def test_an_iterable_cannot_be_replayed(run, vectors):
    batch = {name: values[:16] for name, values in vectors.items()}
    with pytest.raises(OptionError, match="a plain iterable has no positions, so its batches cannot be read again"):
        next(run.replay(lambda ctx: [batch], step=3))


def test_steps_with_non_finite_losses_are_replayed_like_others(vector_input, dense_task, config):
    def broken(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        return jax.numpy.where(batch["_index"] == 7, np.nan, losses), after, outputs

    trainer = Trainer(replace(dense_task, loss_fn=broken), config(on_nan="skip"))
    trainer.train(vector_input, max_steps=12)
    steps = list(trainer.replay(vector_input, step=1, to=12))
    assert [np.isnan(step.loss) for step in steps] == [7 in step.record_ids for step in steps]
    assert all(step.record_ids[np.isnan(step.losses)].tolist() == [7] for step in steps if np.isnan(step.loss))
