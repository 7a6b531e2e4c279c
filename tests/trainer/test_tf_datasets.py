"""The trainer takes tf.data.Datasets: infeed's own as their input, others as the batches of a program."""

import logging
import time
from dataclasses import replace

import numpy as np
import pytest

from pipeline import tf_data
from pipeline.datasets import train_dataset
from pipeline.errors import EvaluationError, FingerprintError, InputError
from pipeline.tf_cpu import tf
from trainer.trainer import Trainer


@pytest.fixture
def program(vectors):
    return tf.data.Dataset.from_tensor_slices(vectors)


@pytest.fixture
def trained(dense_task, config, vectors):
    """trained(name, training input, *stops) -> an evaluation by infeed's own dataset, and the last training."""

    def run(name, training, *stops):
        for stop in stops:
            trainer = Trainer(dense_task, config(name, iterations_per_loop=4))
            result = trainer.train(training, max_steps=stop)
        evaluation = tf_data.eval_dataset(vectors, global_batch=16)
        return Trainer(dense_task, config(name)).evaluate(evaluation), result

    return run


@pytest.fixture
def run_trainer(trained, program, dense_task, config):
    """A trainer in whose work directory four steps were trained."""
    trained("run", tf_data.training_batches(program, 16), 4)
    return Trainer(dense_task, config("run"))


def metrics_of(pair):
    return pair[0].metrics, pair[1].metrics


@pytest.mark.slow
def test_a_dataset_of_infeeds_trains_the_bits_of_its_input_resumes_and_is_proven(trained, vectors):
    options = {"global_batch": 16, "seed": 3}

    def given(ctx):
        place = {"hosts": ctx.hosts, "start_step": ctx.start_step}
        return tf_data.train_dataset(vectors, **options, **place)

    def mapped(ctx):
        return given(ctx).map(lambda batch: batch)

    itself = tf_data.train_dataset(vectors, **options)
    expected = trained("input", lambda ctx: train_dataset(vectors, **options), 24)
    assert expected[0].proven
    for name, training in {"given": given, "itself": itself, "mapped": mapped}.items():
        for way, *stops in (("straight", 24), ("resumed", 12, 24)):
            found = trained(f"{name}, {way}", training, *stops)
            assert metrics_of(found) == metrics_of(expected), (name, way)


def test_a_program_trains_the_same_with_and_without_a_stop_and_is_counted(
    trained, program, dense_task, config
):
    def training(_):
        return tf_data.training_batches(program.shuffle(100, seed=2), 16)

    straight = trained("straight", training, 24)
    assert metrics_of(trained("stopped", training, 12, 24)) == metrics_of(straight)
    evaluation = tf_data.evaluation_batches(program, 16)
    result = Trainer(dense_task, config("straight")).evaluate(evaluation)
    assert (result.records, result.num_records, result.proven) == (100, 100, False)
    assert result.metrics == pytest.approx(straight[0].metrics, rel=1e-6)


@pytest.mark.slow
def test_a_program_without_a_seed_is_not_resumed(trained, program):
    with pytest.raises(FingerprintError, match="the first 12 batches"):
        trained("unseeded", lambda _: tf_data.training_batches(program.shuffle(100), 16), 12, 24)


@pytest.mark.slow
def test_dropping_batches_to_resume_may_take_longer_than_one_batch_may(dense_task, config, program):
    def slowly(x):
        time.sleep(0.1 / 16)
        return x

    def slow(example):
        x = tf.numpy_function(slowly, [example["x"]], tf.float32, stateful=False)
        return {"x": tf.ensure_shape(x, (8,)), "label": example["label"]}

    for stop in (30, 31):
        # with a second for an input that has its own bound
        trainer = Trainer(dense_task, config(stall_seconds=0.5))
        batches = tf_data.training_batches(program.map(slow), 16)
        assert trainer.train(batches, max_steps=stop).step == stop


@pytest.mark.slow
def test_a_dataset_that_cannot_start_at_a_step_is_not_resumed_by_itself(trained, program, caplog):
    with pytest.raises(InputError, match="resumes after step 4"):
        trained("itself", program.repeat().batch(16), 4, 8)
    with caplog.at_level(logging.WARNING, "trainer"):
        trained("function", lambda ctx: program.repeat().batch(16).skip(ctx.start_step), 4, 8)
    assert "unless input_fn starts it at InputContext.start_step" in caplog.text


def test_uses_of_tf_datasets_with_silently_wrong_results_are_refused(
    run_trainer, program, vectors, caplog
):
    masked = program.map(lambda each: each | {"_mask": tf.cast(each["label"] > 0, tf.float32)})
    never, other = "the input never ends", "has global_batch=8, the trainer 16"
    counted = r"the evaluation counted \d\d records; the split has 100"
    for evaluation, error, text in (
        (tf_data.training_batches(program, 16), InputError, never),
        (tf_data.train_dataset(vectors, global_batch=16), InputError, never),
        (tf_data.evaluation_batches(program, 8), InputError, other),
        (tf_data.eval_dataset(vectors, global_batch=8), InputError, other),
        (tf_data.evaluation_batches(masked, 16), EvaluationError, counted),
        (lambda _: program.batch(16), InputError, r"is \w+ \[4"),
    ):
        with pytest.raises(error, match=text):
            run_trainer.evaluate(evaluation)
    with caplog.at_level(logging.WARNING, "trainer"):
        assert run_trainer.evaluate(program.batch(16, drop_remainder=True)).records == 96
    missed = "does not state how many records it has, so one that it left out would not be missed"
    assert missed in caplog.text


def test_elements_that_are_pairs_are_refused_with_the_map_to_write(trained, program):
    pairs = program.map(lambda example: (example["x"], example["label"]))
    for training in (pairs.batch(16), tf_data.training_batches(pairs, 16)):
        with pytest.raises(InputError, match="is a tuple"):
            trained("run", training, 4)


@pytest.mark.slow
def test_predictions_and_two_evaluations_of_a_program_are_complete(
    dense_task, config, program, vectors
):
    task = replace(dense_task, predict_fn=lambda variables, batch: {"x": batch["x"][:, 0]})
    trainer = Trainer(task, config(keep_best="loss"))
    training, batches = (
        make(program, 16) for make in (tf_data.training_batches, tf_data.evaluation_batches)
    )
    both, ends = {"one": batches, "two": batches}, {"max_steps": 8, "eval_every_steps": 4}
    result = trainer.train_and_evaluate(training, both, **ends)
    assert [each.records for each in result.evaluations] == [100] * 4
    predicted = [each["x"] for each in trainer.predict(batches)]
    np.testing.assert_array_equal(predicted, vectors["x"][:, 0])
