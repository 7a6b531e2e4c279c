"""Predictions come for every real record once, in order, whatever the padding; the iterator may be dropped anywhere."""

import dataclasses
import logging
import shutil
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import (
    BatchSizeError,
    CheckpointError,
    EvaluationError,
    InputError,
    OptionError,
)
from trainer.config import TrainerConfig
from trainer.loop.loaded_model import LoadedModel
from trainer.mesh.batch_spec import ROWS_FIRST
from trainer.trainer import Trainer


def scores(variables, batch):
    logits = jnp.tanh(batch["x"] @ variables.params["a"]) @ variables.params["b"]
    return {"logits": logits, "class": logits.argmax(-1), "of": {"x": batch["x"]}}


@pytest.fixture(scope="module")
def task(dense_task):
    return dataclasses.replace(dense_task, predict_fn=scores)


@pytest.fixture(scope="module")
def trained(task, vectors, vector_input, tmp_path_factory):
    """(a trainer after one step, its logits in NumPy): 16 records a step, up to 3 steps a dispatch. Do not train it.

    The rows of a batch are not in the order of the devices' numbers."""
    devices = [jax.devices()[number] for number in (0, 2, 1, 3)]
    workdir = str(tmp_path_factory.mktemp("trained"))
    # one program to compile
    settings = {"global_batch_size": 16, "iterations_per_loop": 3, "loop_mode": "step"}
    trainer = Trainer(task, TrainerConfig(workdir=workdir, **settings), devices)
    params = trainer.train(vector_input, max_steps=1).state.variables.params
    return trainer, np.tanh(vectors["x"] @ np.asarray(params["a"])) @ np.asarray(params["b"])


@pytest.fixture
def trainer(trained):
    return trained[0]


@pytest.fixture
def predicting(trainer):
    """predicting(predict_fn, **settings): the same trainer, but for these."""

    def make(predict_fn=scores, **settings):
        task = dataclasses.replace(trainer._job.task, predict_fn=predict_fn)
        return Trainer(task, dataclasses.replace(trainer.config, **settings))

    return make


@pytest.mark.parametrize("gather", [False, True])
def test_every_real_record_comes_once_in_order_with_its_number(
    trained, vectors, vector_input, gather
):
    trainer, logits = trained
    found = list(trainer.predict(vector_input, gather=gather))
    assert [record["_index"] for record in found] == list(range(100))
    np.testing.assert_array_equal([record["of"]["x"] for record in found], vectors["x"])
    np.testing.assert_allclose([record["logits"] for record in found], logits, rtol=1e-5, atol=1e-6)
    assert [record["class"] for record in found] == logits.argmax(-1).tolist()


def test_keys_select_the_predictions_and_step_the_checkpoint(trainer, vector_input):
    assert {*next(trainer.predict(vector_input, keys=["logits"], step=1))} == {"logits", "_index"}
    with pytest.raises(CheckpointError, match="has no checkpoint of step 2"):
        next(trainer.predict(vector_input, step=2))


def test_the_model_of_another_work_directory_predicts(predicting, trainer, vector_input, tmp_path):
    elsewhere = predicting(workdir=str(tmp_path / "without a model"))
    found = [
        list(each)
        for each in (
            elsewhere.predict(vector_input, keys=["class"], checkpoint_path=trainer.config.workdir),
            trainer.predict(vector_input, keys=["class"]),
        )
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"loop_mode": "scan", "gather": True},
        {"loop_mode": "scan", "mesh": "model=2", "partition": ("a=None,model",)},
        {"loop_mode": "scan", "iterations_per_loop": 100, "predict_batch_size": 48},
    ],
    ids=str,
)
def test_neither_the_mesh_nor_the_size_of_a_dispatch_changes_what_is_predicted(
    trained, predicting, vector_input, settings
):
    gather = settings.get("gather", False)
    settings = {name: value for name, value in settings.items() if name != "gather"}
    found = list(predicting(**settings).predict(vector_input, gather=gather))
    assert [record["_index"] for record in found] == list(range(100))
    np.testing.assert_allclose(
        [record["logits"] for record in found], trained[1], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("records", [1, 16, 17])
def test_padding_is_neither_returned_nor_visible_to_predict_fn(
    predicting, vectors, make_input, records
):
    few = {key: array[:records] for key, array in vectors.items()}

    def batch_sum(variables, batch):
        return {"sum": jnp.broadcast_to(batch["x"].sum(), batch["_mask"].shape)}

    found = list(predicting(batch_sum).predict(lambda ctx: make_input(few, ctx, {"x": np.nan})))
    assert [record["_index"] for record in found] == list(range(records))
    assert np.isfinite([record["sum"] for record in found]).all()


def test_predictions_are_writable_numpy_values(trainer, vector_input):
    record = next(trainer.predict(vector_input))
    assert isinstance(record["class"], np.integer)
    record["logits"][:] = 0


def test_masked_bad_records_are_left_out_and_counted(trainer, without, caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        found = trainer.predict(without(0, 17, 99, on_error="mask"))
        assert [record["_index"] for record in found] == sorted({*range(100)} - {0, 17, 99})
    assert caplog.messages == ["prediction: left out 3 bad records, predicted 97"]


def test_a_record_that_is_missing_is_an_error_before_the_last_predictions_are_given(
    trainer, without, repeating
):
    for input_fn, text in (
        (
            without(42),
            "counted 99 records; the split has 100.* 95 predictions were returned before",
        ),
        (repeating, "in place of another; 96 predictions were returned before this was known"),
    ):
        with pytest.raises(EvaluationError, match=text):
            list(trainer.predict(input_fn))


def test_a_plain_iterable_is_predicted_to_its_end_without_numbers(trainer, vectors):
    def plain(ctx):
        for start in (0, 16, 32):
            yield {"x": vectors["x"][start : start + 16]}

    found = list(trainer.predict(plain))
    assert len(found) == 48
    assert {*found[0]} == {"class", "logits", "of"}


def test_keys_that_a_task_does_not_predict_are_refused(trainer, dense_task, vector_input):
    cannot = Trainer(dense_task, trainer.config)
    known = "does not predict 'clas'. Did you mean 'class'. Known: class, logits, of"
    for given, keys, text in (
        (cannot, None, r"the task has no predict_fn.*nnx_task\(predict=...\)"),
        (trainer, ["logits", "clas"], known),
        (trainer, "class", r"keys='class' is one str. Give a list of names: keys=\['class'\]"),
    ):
        with pytest.raises(OptionError, match=text):
            next(given.predict(vector_input, keys=keys))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda batch: batch["x"], "predict_fn returned an array"),
        (lambda batch: {"of": {"x": batch["x"].mean(0)}}, r"of/x has the shape \[8\]"),
        (lambda batch: {"mean": batch["x"].mean()}, r"mean has the shape \[\]"),
        (lambda batch: {"_index": batch["x"]}, "'_index'"),
    ],
)
def test_an_invalid_prediction_is_an_error_that_names_it(predicting, vector_input, given, text):
    with pytest.raises(InputError, match=text):
        next(predicting(lambda variables, batch: given(batch)).predict(vector_input))


def test_the_batch_size_of_predictions_is_evaluations_or_its_own(config, task):
    assert config(eval_batch_size=8).resolved_predict_batch_size == 8
    assert config(predict_batch_size=4).to_json()["predict_batch_size"] == 4
    with pytest.raises(BatchSizeError, match="6 is not divisible by 4 devices"):
        Trainer(task, config(predict_batch_size=6))


def test_predictions_of_a_dispatch_count_towards_its_memory_limit(predicting, vector_input, caplog):
    def wide(variables, batch):
        # 16 KiB a step on each of four devices
        return {"wide": jnp.zeros((len(batch["_mask"]), 1024))}

    trainer = predicting(wide, superbatch_bytes=33 * 1024)
    with caplog.at_level(logging.INFO, "trainer"):
        next(trainer.predict(vector_input))
        assert "2 steps per dispatch instead of 3: one takes 16.6 KB" in caplog.text
        caplog.clear()
        next(trainer.predict(vector_input, gather=True))  # 64 KiB on each
        assert "1 step per dispatch instead of 3: one takes 65.9 KB" in caplog.text


def test_training_and_evaluation_may_go_on_while_predictions_are_taken(
    trainer, predicting, vector_input, tmp_path
):
    trainer = predicting(workdir=str(shutil.copytree(trainer.config.workdir, tmp_path / "copy")))
    found = trainer.predict(vector_input)
    first = next(found)["_index"]
    trainer.train(vector_input, steps=1)
    assert trainer.evaluate(vector_input).step == 2
    assert [first, *(record["_index"] for record in found)] == list(range(100))


def test_the_device_works_on_the_next_dispatch_while_the_host_has_this_one(
    predicting, vector_input
):
    seen = []

    def watched(variables, batch):
        jax.debug.callback(lambda index: seen.append(int(index)), batch["_index"][0])
        return {"index": batch["_index"]}

    found = predicting(watched).predict(vector_input)
    assert next(found)["_index"] == 0
    stop = time.monotonic() + 20
    while 80 not in seen and time.monotonic() < stop:  # step 6 of the second dispatch
        time.sleep(0.01)
    assert 80 in seen
    assert 96 not in seen  # the third waits
    found.close()


def threads():
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("trainer")}
    return names - {"trainer-supervisor"}  # of the process


@pytest.mark.parametrize("taken", [0, 48, 99])
def test_a_dropped_iterator_ends_its_threads_and_the_next_call_works(trainer, vector_input, taken):
    found = trainer.predict(vector_input)
    for _ in range(taken):
        next(found)
    found.close()
    assert not threads()
    for record in trainer.predict(vector_input):
        assert record["_index"] == 0
        break  # one that is forgotten is dropped, too
    del record
    assert not threads()


@pytest.mark.slow
def test_closing_predictions_does_not_wait_for_a_stalled_input(trainer, altered):
    never = threading.Event()

    def stalled(batch, number):
        if number == 6:
            never.wait(30)
        return batch

    found = trainer.predict(altered(stalled))
    assert next(found)["_index"] == 0
    begun = time.monotonic()
    found.close()
    assert time.monotonic() - begun < 10
    never.set()


def test_a_task_that_no_nnx_module_makes_has_no_module(task):
    with pytest.raises(OptionError, match="this task has no module"):
        _ = LoadedModel(
            step=0, task=task, variables=None, recipe=None, inputs={}, axes=ROWS_FIRST
        ).module
