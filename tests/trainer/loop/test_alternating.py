"""Training with evaluations in between: the training is the same, and so is each evaluation."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from pipeline.errors import CheckpointError, OptionError
from trainer.callbacks import Callback, EarlyStopping
from trainer.checkpointing.manager import CheckpointManager
from trainer.trainer import Trainer

PARTS = {"first": slice(30), "second": slice(30, None)}


def bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def test_training_is_the_same_with_evaluations_in_between_and_they_are_those_of_its_checkpoints(
    dense_task, vectors, make_input, config
):
    inputs = []

    def input_fn(ctx):
        inputs.append(make_input(vectors, ctx))
        return inputs[-1]

    common = {"iterations_per_loop": 4, "checkpoint_every_steps": 10, "keep_max": 10}
    trainer = Trainer(dense_task, config("both", **common))
    both = trainer.train_and_evaluate(input_fn, input_fn, max_steps=23, eval_every_steps=8)
    training, evaluation = inputs
    plain = Trainer(dense_task, config("plain", **common)).train(input_fn, max_steps=23)
    assert bits(both.state) == bits(plain.state)
    # one reader, from the first batch to the last
    np.testing.assert_array_equal(training.given, inputs[2].given)
    assert len(evaluation.given) == 3 * evaluation.info.steps_per_epoch
    assert [each.step for each in both.evaluations] == [8, 16, 23]
    assert CheckpointManager(trainer.config).steps() == [8, 10, 16, 20, 23]
    for each in both.evaluations:
        assert each.proven
        alone = trainer.evaluate(input_fn, step=each.step)
        assert (alone.metrics, alone.crc) == (each.metrics, each.crc)


def test_a_finished_run_catches_up_on_its_evaluation_once(dense_task, vector_input, config):
    trainer = Trainer(dense_task, config(max_steps=10))
    trainer.train(vector_input)
    made_up = trainer.train_and_evaluate(vector_input, vector_input)
    assert (made_up.step, [each.step for each in made_up.evaluations]) == (10, [10])
    assert trainer.train_and_evaluate(vector_input, vector_input).evaluations == ()


def test_evaluations_every_zero_steps_are_refused(dense_task, vector_input, config):
    with pytest.raises(OptionError, match="eval_every_steps=0"):
        Trainer(dense_task, config()).train_and_evaluate(
            vector_input, vector_input, max_steps=10, eval_every_steps=0
        )


class Diary(Callback):
    def __init__(self, stop_at=None):
        self.stop_at, self.heard = stop_at, []

    def on_loop_end(self, end):
        self.heard.append(("loop", end.step, len(end.scalars["loss"])))
        if end.step == self.stop_at:
            end.stop("enough is learnt")

    def on_checkpoint(self, end):
        assert int(end.state.step) == end.step
        end.reports.histogram(end.step, "a", np.asarray(end.state.variables.params["a"]))
        self.heard.append(("checkpoint", end.step))

    def on_evaluation_end(self, end):
        self.heard.append(("evaluation", end.name, end.result.step))


def test_callbacks_are_called_for_every_loop_checkpoint_and_evaluation_in_order(
    dense_task, vector_input, config
):
    diary = Diary()
    settings = config(iterations_per_loop=4, checkpoint_every_steps=8)
    trainer = Trainer(dense_task, settings, callbacks=[diary])
    trainer.train_and_evaluate(vector_input, vector_input, max_steps=9, name="x")
    first = [("loop", 4, 4), ("loop", 8, 4), ("checkpoint", 8), ("evaluation", "x", 8)]
    assert diary.heard == [*first, ("loop", 9, 1), ("checkpoint", 9), ("evaluation", "x", 9)]
    diary.heard.clear()
    trainer.evaluate(vector_input)
    assert diary.heard == [("evaluation", None, 9)]


def test_a_callback_may_end_the_training_saved(dense_task, vector_input, config, caplog):
    settings = config(iterations_per_loop=4)
    trainer = Trainer(dense_task, settings, callbacks=[Diary(stop_at=4)])
    result = trainer.train(vector_input, max_steps=100)
    assert result.stopped == "enough is learnt"
    assert 4 < result.step <= 16
    assert CheckpointManager(settings).steps() == [result.step]
    assert (
        f"enough is learnt: training ends at step {result.step} of 100, which is saved"
        in caplog.text
    )


def test_an_exception_of_a_callback_ends_the_run(dense_task, vector_input, config):
    class Broken(Callback):
        def on_checkpoint(self, end):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Trainer(dense_task, config(), callbacks=[Broken()]).train(vector_input, max_steps=2)


def test_several_inputs_are_evaluated_under_their_names(dense_task, vectors, make_input, config):
    parts = {
        name: {key: array[rows] for key, array in vectors.items()} for name, rows in PARTS.items()
    }
    inputs = {name: partial(make_input, part) for name, part in parts.items()}
    trainer = Trainer(dense_task, config(keep_best="accuracy", keep_best_mode="max"))
    result = trainer.train_and_evaluate(
        partial(make_input, vectors), inputs, max_steps=4, eval_every_steps=2
    )
    found = [(each.step, each.name, each.records) for each in result.evaluations]
    assert found == [(2, "first", 30), (2, "second", 70), (4, "first", 30), (4, "second", 70)]
    assert (
        trainer.evaluate(inputs["second"], name="alone").metrics == result.evaluations[-1].metrics
    )
    workdir = Path(trainer.config.workdir)
    assert (workdir / "eval_first").is_dir()
    assert (workdir / "eval_second").is_dir()
    kept = json.loads((workdir / "evaluations.json").read_text())
    assert str(result.evaluations[2].metrics["accuracy"]) in json.dumps(kept)


@pytest.mark.parametrize(
    ("inputs", "name", "text"),
    [({}, None, "with 0 inputs"), ({"a": 1}, "b", "name='b' with 1 inputs")],
)
def test_inputs_without_names_or_with_two_are_refused(
    dense_task, vector_input, config, inputs, name, text
):
    with pytest.raises(OptionError, match=text):
        Trainer(dense_task, config()).train_and_evaluate(
            vector_input, inputs, max_steps=1, name=name
        )


def test_an_evaluation_whose_callback_failed_is_made_up_for(dense_task, vector_input, config):
    class Broken(Callback):
        def on_evaluation_end(self, end):
            raise KeyError("mine")

    settings = config(iterations_per_loop=4)
    with pytest.raises(KeyError, match="mine"):
        Trainer(dense_task, settings, callbacks=[Broken()]).train_and_evaluate(
            vector_input, vector_input, max_steps=4
        )
    diary = Diary()
    Trainer(dense_task, settings, callbacks=[diary]).train_and_evaluate(
        vector_input, vector_input, max_steps=4
    )
    assert diary.heard == [("evaluation", None, 4)]


def stopped_early(task, config, inputs, max_steps, **options):
    early = EarlyStopping(options.pop("metric", "loss"), 3, **options)
    trainer = Trainer(task, config, callbacks=[early])
    return trainer.train_and_evaluate(*inputs, max_steps=max_steps, eval_every_steps=4)


def test_a_training_that_gets_no_better_ends_and_a_restart_goes_on_counting(
    dense_task, vector_input, config, caplog
):
    caplog.set_level("INFO", "trainer")
    stuck = replace(dense_task, optimizer=optax.sgd(0.0))
    inputs = [vector_input] * 2
    settings = config("alone", iterations_per_loop=4, keep_best="loss")
    alone = stopped_early(stuck, settings, inputs, 60)
    path = Path(settings.workdir, "checkpoints", "4")
    assert f"the best checkpoint by loss: --checkpoint-path {path}" in caplog.text
    assert path.is_dir()
    assert [each.step for each in alone.evaluations] == [4, 8, 12, 16, alone.step]
    assert alone.step <= 28

    def since(metric, count, step):
        value = f"{np.float32(alone.evaluations[0].metrics[metric]):.6g}"
        return f"{metric} was not better than {value} at step 4 in {count} evaluations up to step {step}"

    assert alone.stopped == since("loss", 3, 16)
    settings = config("resumed", iterations_per_loop=4)
    highest = {"metric": "accuracy", "better": "max"}
    assert stopped_early(stuck, settings, inputs, 8, **highest).stopped is None
    resumed = stopped_early(stuck, settings, inputs, 60, **highest)
    assert (resumed.stopped, resumed.step) == (since("accuracy", 3, 16), alone.step)
    assert "step 16: accuracy" in caplog.text
    again = stopped_early(stuck, settings, inputs, 60, **highest)
    assert (again.step, again.start_step, again.evaluations) == (resumed.step, resumed.step, ())
    assert again.stopped == since("accuracy", 4, again.step)
    longer = Trainer(stuck, settings, callbacks=[EarlyStopping("accuracy", 6, better="max")])
    assert longer.train_and_evaluate(*inputs, max_steps=60, eval_every_steps=4).step > again.step


def test_a_training_resumes_with_damaged_metrics_that_no_callback_asks_for(
    dense_task, vector_input, config
):
    settings = config(iterations_per_loop=4)
    options = {"max_steps": 8, "eval_every_steps": 4}
    Trainer(dense_task, settings).train_and_evaluate(*[vector_input] * 2, **options)
    metrics = Path(settings.workdir, "eval", "metrics.jsonl")
    metrics.write_bytes(metrics.read_bytes().replace(b'"loss":', b'"loss":[', 1))
    again = Trainer(dense_task, settings).train_and_evaluate(
        *[vector_input] * 2, max_steps=12, eval_every_steps=4
    )
    assert (again.start_step, again.step) == (8, 12)
    early = Trainer(dense_task, settings, callbacks=[EarlyStopping("loss", 3)])
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        early.train_and_evaluate(*[vector_input] * 2, max_steps=16, eval_every_steps=4)


def test_a_training_that_gets_better_goes_on(dense_task, vector_input, config):
    task = replace(dense_task, metrics={"gain": lambda _, batch: -batch["_losses"]})
    early = [EarlyStopping("loss", 3), EarlyStopping("gain", 3, better="max")]
    trainer = Trainer(task, config(iterations_per_loop=4), callbacks=early)
    learns = trainer.train_and_evaluate(
        vector_input, vector_input, max_steps=40, eval_every_steps=4
    )
    assert (learns.stopped, learns.step) == (None, 40)


def test_early_stopping_by_what_no_evaluation_has_is_refused(dense_task, config):
    for early, problem in (
        (EarlyStopping("los", 3), "metric='los' is not a number that an evaluation reports"),
        (EarlyStopping("accuracy", 3), "metric='accuracy' needs better, 'max' or 'min'"),
    ):
        with pytest.raises(OptionError, match=problem):
            Trainer(dense_task, config(), callbacks=[early])
    with pytest.raises(
        OptionError, match="keep_best='los' is not"
    ):  # of which --patience makes one
        Trainer(dense_task, config(keep_best="los"), callbacks=[EarlyStopping("los", 3)])
    with pytest.raises(OptionError, match="patience=0"):
        EarlyStopping("loss", 0)
