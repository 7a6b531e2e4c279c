"""Bad records that an input masks, and what an evaluation passes on of its records."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import EvaluationError, InputError
from trainer.loop.job import Job
from trainer.loop.preflight import difference, facts_of
from trainer.mesh.placement import Placement
from trainer.step.steps import eval_step
from trainer.trainer import Trainer

BAD = [0, 17, 18, 99]


@pytest.fixture
def masking(altered):
    """masking(bad, **changes): an input_fn over 100 vectors that masks the bad ones, as pipeline.datasets does."""

    def input_fn_of(bad=BAD, on_error="mask", promised=lambda crc: crc, **info):
        def masked(batch, _):
            hit = np.isin(batch["_index"], bad)
            return batch | {
                "x": np.where(hit[:, None], np.float32(np.nan), batch["x"]),
                "_mask": np.where(hit, np.float32(0), batch["_mask"]),
                "_crc": np.where(hit, promised(batch["_crc"]), batch["_crc"]),
            }

        return altered(masked, on_error=on_error, **info)

    return input_fn_of


def test_metrics_are_means_over_the_other_records_and_the_bad_ones_are_counted(
    trainer, masking, vectors, make_input
):
    good = {key: np.delete(array, BAD, axis=0) for key, array in vectors.items()}
    expected = trainer.evaluate(lambda ctx: make_input(good, ctx))
    result = trainer.evaluate(masking())
    assert result.metrics == pytest.approx(expected.metrics, rel=1e-6)
    assert (result.records, result.masked, result.num_records) == (96, 4, 100)
    assert result.crc == result.expected_crc
    assert f"not proven: {result.masked} bad records left out" in str(result)
    assert not result.proven  # not the split's own means, though nothing is unaccounted for
    assert (expected.masked, expected.proven) == (0, True)


def test_one_line_of_the_log_says_how_many_were_left_out(trainer, masking, vector_input, caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        trainer.evaluate(vector_input)
        assert not caplog.records
        trainer.evaluate(masking())
    assert caplog.messages == ["evaluation: left out 4 bad records; the means are over 96"]


def test_a_batch_of_bad_records_alone_does_no_harm(trainer, masking):
    result = trainer.evaluate(masking(range(16, 64)))
    assert (result.records, result.masked) == (52, 48)
    assert np.isfinite(result.metrics["loss"])


def test_an_input_without_on_error_mask_must_not_mask_records(trainer, masking):
    for on_error in ("raise", "skip"):
        with pytest.raises(EvaluationError, match="counted 96 records; the split has 100"):
            trainer.evaluate(masking(on_error=on_error))


def test_a_masked_record_that_stands_in_place_of_another_fails_the_evaluation(trainer, masking):
    text = r"counted 96 records and left out 4 as bad as due, but their crcs add up to \w+ and not to the index's"
    with pytest.raises(EvaluationError, match=text):
        trainer.evaluate(masking(promised=lambda crc: crc + np.uint32(1)))


def test_a_masked_row_without_a_record_number_counts_as_padding(trainer, masking):
    def forgetting(ctx):
        source = masking([5])(ctx)
        batches = source.batches
        source.batches = lambda position: (
            b | {"_index": np.where(b["_mask"] > 0, b["_index"], -1)} for b in batches(0)
        )
        return source

    with pytest.raises(EvaluationError, match="counted 99 records; the split has 100"):
        trainer.evaluate(forgetting)


def test_an_evaluation_of_only_bad_records_is_an_error(trainer, masking):
    with pytest.raises(
        EvaluationError, match=r"no row of the input has a _mask above 0 \(all are bad\)"
    ):
        trainer.evaluate(masking(range(100)))


def test_training_continues_past_masked_records_and_logs_their_number_at_the_end(
    dense_task, config, masking, caplog
):
    input_fn = masking(range(8), quarantine=("a bad record", "and another"))
    result = Trainer(dense_task, config()).train(input_fn, steps=9)
    assert np.isfinite(result.metrics["loss"])
    assert "training: 2 bad records on this host (mask)" in caplog.messages


def test_hosts_that_would_do_different_things_about_bad_records_do_not_begin(
    dense_task, config, masking
):
    job = Job(dense_task, config(), Placement.of())
    mine, theirs = (
        facts_of(job, [job.open("eval", masking(on_error=how))], 0, 0) for how in ("mask", "raise")
    )
    assert difference([mine, mine]) == ""
    assert difference([mine, theirs]) == "on_error is mask on host 0 and raise on host 1."


def predict_fn(variables, batch):
    logits = jnp.tanh(batch["x"] @ variables.params["a"]) @ variables.params["b"]
    probability = jax.nn.softmax(logits).max(-1)
    return {
        "class": logits.argmax(-1),
        "label": batch["label"],
        "probability": probability,
        "logits": logits,
    }


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
        predictions = {
            key: np.concatenate([part.predictions[key] for part in parts])
            for key in parts[0].predictions
        }
        index = None if parts[0].index is None else np.concatenate([part.index for part in parts])
        return result, index, np.concatenate([part.loss for part in parts]), predictions

    return evaluate


# Three steps per dispatch, on four devices: the last dispatch has one step, the last batch four records.
@pytest.mark.parametrize("loop_mode", ["scan", "step"])
def test_the_records_are_those_that_predict_returns(
    trainer, predicting, of_records, vector_input, loop_mode
):
    result, index, loss, predictions = of_records(vector_input, loop_mode=loop_mode)
    expected = list(Trainer(predicting, trainer.config).predict(vector_input))
    assert index.tolist() == [record["_index"] for record in expected] == list(range(100))
    assert predictions.keys() == {"class", "label", "probability"}  # one number per record
    for key, values in predictions.items():
        np.testing.assert_array_equal(values, [record[key] for record in expected], key)
    assert loss.mean(dtype=np.float64) == pytest.approx(result.metrics["loss"], rel=1e-6)
    assert np.mean(predictions["class"] == predictions["label"]) == pytest.approx(
        result.metrics["accuracy"]
    )


def test_on_records_omits_bad_records_that_the_input_masks(of_records, without):
    result, index, _, _ = of_records(without(0, 17, 99, on_error="mask"))
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


def test_a_prediction_without_a_row_per_record_is_named(of_records, dense_task, vector_input):
    wrong = replace(dense_task, predict_fn=lambda variables, batch: {"class": batch["x"].mean()})
    with pytest.raises(
        InputError, match=r"predict_fn's class has the shape \[\]; expected \[16, ...\]"
    ):
        of_records(vector_input, task=wrong)


def test_records_come_once_however_often_the_epoch_is_repeated(trainer, vector_input):
    parts = []
    trainer.evaluate(vector_input, check_padding=True, on_records=parts.append)
    assert [number for part in parts for number in part.index] == [*range(100)]


def test_rows_are_computed_apart_and_only_for_on_records_so_that_metrics_keep_their_bits(
    predicting, dense_task
):
    batch = {"x": jnp.zeros((4, 8)), "label": jnp.zeros(4, jnp.int32), "_mask": jnp.ones(4)}
    arguments = dense_task.init(jax.random.key(0), batch), jnp.int32(0), {}, batch

    def lowered(task, **options):
        return jax.jit(eval_step(task, **options)).lower(*arguments).as_text()

    assert lowered(dense_task) == lowered(predicting)
    assert "optimization_barrier" not in lowered(predicting)
    assert "optimization_barrier" in lowered(predicting, with_rows=True)
