"""What an evaluation passes on of its records: the same as predict returns, without a change to the metrics."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import InputError
from trainer.step_functions import EvalState, eval_step
from trainer.trainer import Trainer


def predict_fn(variables, batch):
    logits = jnp.tanh(batch["x"] @ variables.params["a"]) @ variables.params["b"]
    probability = jax.nn.softmax(logits).max(-1)
    return {"class": logits.argmax(-1), "label": batch["label"], "probability": probability, "logits": logits}


@pytest.fixture(scope="module")
def predicting(dense_task):
    return replace(dense_task, predict_fn=predict_fn)


@pytest.fixture
def of_records(trainer, predicting):
    """of_records(input_fn, **settings): the result of an evaluation, and the records that it passed on."""

    def evaluate(input_fn, task=predicting, **settings):
        parts = []
        made = Trainer(task, replace(trainer.config, **settings))
        result = made.evaluate(input_fn, on_records=parts.append)
        predictions = {key: np.concatenate([part.predictions[key] for part in parts]) for key in parts[0].predictions}
        index = None if parts[0].index is None else np.concatenate([part.index for part in parts])
        return result, index, np.concatenate([part.loss for part in parts]), predictions

    return evaluate


# Three steps per dispatch, on four devices: the last dispatch has one step, the last batch four records.
@pytest.mark.parametrize("loop_mode", ["scan", "step"])
def test_the_records_are_those_that_predict_returns(trainer, predicting, of_records, vector_input, loop_mode):
    result, index, loss, predictions = of_records(vector_input, loop_mode=loop_mode)
    expected = list(Trainer(predicting, trainer.config).predict(vector_input))
    assert index.tolist() == [record["_index"] for record in expected] == list(range(100))
    assert predictions.keys() == {"class", "label", "probability"}  # one number per record
    for key, values in predictions.items():
        np.testing.assert_array_equal(values, [record[key] for record in expected], key)
    assert loss.mean(dtype=np.float64) == pytest.approx(result.metrics["loss"], rel=1e-6)
    assert np.mean(predictions["class"] == predictions["label"]) == pytest.approx(result.metrics["accuracy"])


def test_on_records_omits_bad_records_that_the_input_masks(of_records, vectors, make_input):
    def masking(ctx):
        source = make_input(vectors, ctx)
        batches, source.info = source.batches, replace(source.info, on_error="mask")
        source.batches = lambda position: (
            batch | {"_mask": batch["_mask"] * ~np.isin(batch["_index"], [0, 17, 99])} for batch in batches(position)
        )
        return source

    result, index, _, _ = of_records(masking)
    assert (result.records, result.masked) == (97, 3)
    assert index.tolist() == sorted({*range(100)} - {0, 17, 99})


def test_a_task_that_cannot_predict_passes_on_the_losses_and_an_iterable_has_no_numbers(
    of_records, dense_task, vectors
):
    def plain(ctx):
        for start in (0, 16):
            yield {key: array[start : start + 16] for key, array in vectors.items()}

    result, index, loss, predictions = of_records(plain, task=dense_task)
    assert (index, predictions, len(loss)) == (None, {}, 32)
    assert loss.mean(dtype=np.float64) == pytest.approx(result.metrics["loss"], rel=1e-6)


def test_only_the_first_of_several_epochs_passes_its_records_on(dense_task, vector_input, config):
    parts = []
    trainer = Trainer(dense_task, config(ema_decay=0.5, evaluate="both", fast_dev_run=1))
    trainer.evaluate(vector_input, on_records=parts.append, check_padding=True)
    assert sum(len(part.loss) for part in parts) == 16


def test_a_prediction_without_a_row_per_record_is_named(of_records, dense_task, vector_input):
    wrong = replace(dense_task, predict_fn=lambda variables, batch: {"class": batch["x"].mean()})
    with pytest.raises(InputError, match=r"predict_fn's class has the shape \[\]; expected \[16, ...\]"):
        of_records(vector_input, task=wrong)


def test_rows_are_computed_apart_and_only_for_on_records_so_that_metrics_keep_their_bits(predicting, dense_task):
    batch = {"x": jnp.zeros((4, 8)), "label": jnp.zeros(4, jnp.int32), "_mask": jnp.ones(4)}
    state = EvalState(dense_task.init(jax.random.key(0), batch), jnp.int32(0), {})

    def lowered(task, **options):
        return jax.jit(eval_step(task, **options)).lower(state, batch).as_text()

    assert lowered(dense_task) == lowered(predicting)
    assert "optimization_barrier" not in lowered(predicting)
    assert "optimization_barrier" in lowered(predicting, with_rows=True)
