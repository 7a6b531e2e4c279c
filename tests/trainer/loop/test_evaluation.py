"""Evaluation counts every record once, whatever the padding, or it fails."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CheckpointError, EmptySplitError, EvaluationError, InputError
from trainer.inputs import LABELLED, InputInfo
from trainer.loop.exact_epoch import Proof
from trainer.step.steps import BAD_ROWS, CRC_SUM, RECORDS
from trainer.trainer import Trainer


def expected_metrics(trainer, vector_input, vectors):
    """Loss and accuracy of all records in NumPy, with the parameters that one more step leaves."""
    params = trainer.train(vector_input, steps=1).state.variables.params
    logits = np.tanh(vectors["x"] @ np.asarray(params["a"])) @ np.asarray(params["b"])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    label = vectors["label"]
    return -log_p[np.arange(len(label)), label].mean(), (logits.argmax(1) == label).mean()


def test_a_padded_epoch_gives_the_means_over_the_real_records(trainer, vectors, vector_input):
    loss, accuracy = expected_metrics(trainer, vector_input, vectors)
    result = trainer.evaluate(vector_input)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert result.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert (result.step, result.records, result.num_records, result.proven) == (3, 100, 100, True)
    assert result.crc == result.expected_crc


def test_values_in_padding_change_no_bit_of_an_evaluation(
    trainer, vectors, make_input, vector_input
):
    zeros = trainer.evaluate(vector_input)
    for pad in ({"x": np.nan, "label": 2**31 - 1}, {"x": 1e38, "label": -1}):
        assert (
            trainer.evaluate(lambda ctx, pad=pad: make_input(vectors, ctx, pad)).metrics
            == zeros.metrics
        )


# One, a full batch, one more, and a full dispatch: at most three steps of 16 records.
@pytest.mark.parametrize("records", [1, 16, 17, 48])
def test_any_number_of_records_is_counted_exactly(trainer, vectors, make_input, records):
    few = {key: array[:records] for key, array in vectors.items()}
    result = trainer.evaluate(lambda ctx: make_input(few, ctx))
    assert (result.records, result.proven) == (records, True)


def test_a_record_given_twice_in_place_of_another_fails_the_evaluation(trainer, repeating):
    with pytest.raises(EvaluationError, match=r"their crcs add up to \w+ .* in place of another"):
        trainer.evaluate(repeating)


def test_a_missing_record_fails_the_evaluation(trainer, without):
    with pytest.raises(EvaluationError, match="counted 99 records; the split has 100"):
        trainer.evaluate(without(42))


def test_an_input_that_cannot_prove_its_records_gives_unproven_metrics(trainer, altered):
    result = trainer.evaluate(altered(expected_crc=None))
    assert (result.records, result.num_records, result.proven) == (100, 100, False)


def test_an_epoch_that_ends_early_is_an_error(trainer, vectors, make_input):
    def short(ctx):
        source = make_input(vectors, ctx)
        source.batches = lambda position: iter([source._batch(0)])
        return source

    text = "ended before step 2: it returned 1 batches from step 1 on, expected 7"
    with pytest.raises(InputError, match=text):
        trainer.evaluate(short)


def test_a_plain_iterable_is_read_to_its_end(trainer, vectors, vector_input):
    def plain(ctx):
        for start in (0, 16, 32):
            yield {key: array[start : start + 16] for key, array in vectors.items()}

    result = trainer.evaluate(plain)
    assert (result.records, result.num_records, result.proven) == (48, None, False)
    with pytest.raises(EmptySplitError, match="the input has no batches"):
        trainer.evaluate(lambda ctx: [])


def test_the_checkpoint_to_evaluate_can_be_chosen(trainer, vector_input):
    second = trainer.evaluate(vector_input)
    trainer.train(vector_input, steps=2)
    assert trainer.evaluate(vector_input).step == 4
    chosen = trainer.evaluate(vector_input, step=np.int64(2))
    assert (chosen.step, chosen.metrics) == (2, second.metrics)


@pytest.fixture
def other(dense_task, vector_input, config):
    """Another trainer, with a checkpoint of its own and keep_best."""
    trainer = Trainer(dense_task, config("other", seed=1, keep_best="loss"))
    trainer.train(vector_input, max_steps=1)
    return trainer


def test_the_checkpoint_of_another_work_directory_is_evaluated(trainer, other, vector_input):
    trainer.train(vector_input, steps=2)
    there = trainer.config.workdir
    newest, second = trainer.evaluate(vector_input), trainer.evaluate(vector_input, step=2)
    for path, expected in (
        (there, newest),
        (f"{there}/", newest),
        (Path(there, "checkpoints/2"), second),
    ):
        elsewhere = other.evaluate(vector_input, checkpoint_path=path)
        assert (elsewhere.step, elsewhere.metrics) == (expected.step, expected.metrics)
    assert other.evaluate(vector_input, checkpoint_path=there, step=2).metrics == second.metrics
    assert other.evaluate(vector_input).metrics != newest.metrics


@pytest.mark.slow
def test_keep_best_ignores_the_evaluation_of_another_work_directory(trainer, other, vector_input):
    other.evaluate(vector_input, checkpoint_path=trainer.config.workdir)
    assert not Path(other.config.workdir, "evaluations.json").exists()
    assert Path(other.config.workdir, "eval").is_dir()
    other.evaluate(vector_input)
    assert Path(other.config.workdir, "evaluations.json").exists()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("{}/nothing", "nothing' has no checkpoint"),
        ("{}/run/checkpoints/7", r"run/checkpoints has no checkpoint of step 7. It has: \[2\]"),
        ("{}/run/checkpoints", "run/checkpoints' has no checkpoint. Give the work directory"),
        ("{}/run/checkpoints/2", "is not of step 1. Give one of the two."),
    ],
)
def test_a_checkpoint_path_without_a_checkpoint_is_refused(
    trainer, vector_input, tmp_path, path, text
):
    step = 1 if path.endswith("/2") else None
    with pytest.raises(CheckpointError, match=text):
        trainer.evaluate(vector_input, checkpoint_path=path.format(tmp_path), step=step)


def test_an_evaluation_without_a_checkpoint_is_refused(trainer, dense_task, vector_input, config):
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 5\. It has: \[2\]"):
        trainer.evaluate(vector_input, step=5)
    empty = config("empty")
    with pytest.raises(CheckpointError, match="empty is no directory. Train first"):
        Trainer(dense_task, empty).evaluate(vector_input)
    assert not Path(empty.workdir).exists()


def test_an_evaluation_leaves_training_as_it_was(trainer, dense_task, vector_input, config):
    trainer.evaluate(vector_input)
    evaluated = trainer.train(vector_input, max_steps=5)
    plain = Trainer(dense_task, config("plain")).train(vector_input, max_steps=5)
    assert evaluated.metrics == plain.metrics


EXPLAINED = "The proof is described in ARCHITECTURE.md, How an evaluation is proven."
COMMAND = "infeed verify data --split validation --decode"


def of(num_records=3, expected_crc=7, verify_command=COMMAND, **others):
    stated = {
        "num_records": num_records,
        "expected_crc": expected_crc,
        "verify_command": verify_command,
    }
    return InputInfo({}, "data", **stated, **others)


def epoch_of(info):
    source: Any = SimpleNamespace(info=info)
    return Proof(source)


def sums(records, crc, bad=0):
    counted = {RECORDS: records, LABELLED: records, BAD_ROWS: bad, CRC_SUM: crc}
    return {name: np.array([value]) for name, value in counted.items()}


def refusal(records, crc, info):
    epoch = epoch_of(info)
    epoch.add(sums(records, crc))
    with pytest.raises(EvaluationError) as raised:
        epoch.check("evaluation", "the metrics are not the split's", "")
    return str(raised.value)


@pytest.mark.parametrize(
    ("records", "crc", "info", "problem"),
    [
        (2, 7, of(), "counted 2 records; the split has 3"),
        (3, 6, of(), "crcs add up to 00000006 and not to the index's 00000007"),
        (
            0,
            0,
            of(None, None),
            "no row of the input has a _mask above 0, so the evaluation has nothing to count",
        ),
    ],
    ids=["counts", "checksums", "nothing"],
)
def test_an_inexact_epoch_names_the_command_that_shows_damaged_records(records, crc, info, problem):
    text = refusal(records, crc, info)
    assert problem in text
    assert f" To see damaged records: {COMMAND}. If it finds none" in text
    assert text.endswith(EXPLAINED)


def test_an_input_without_a_manifest_says_what_to_look_at_and_names_an_existing_chapter():
    text = refusal(2, 7, of(verify_command=None))
    assert "Check the input's batches: in an epoch each record must come once" in text
    assert text.endswith(EXPLAINED)
    page, chapter = (
        EXPLAINED.removeprefix("The proof is described in ").removesuffix(".").split(", ")
    )
    assert f"\n## {chapter}\n" in (Path(__file__).parents[3] / page).read_text()


def test_totals_are_not_compared_when_bad_records_were_left_out_or_none_are_stated():
    for on_error, bad, totals in (
        ("mask", 1, {"num_bytes": 9}),
        ("raise", 0, {}),
        ("raise", 0, {"num_bytes": 8}),
    ):
        epoch = epoch_of(of(on_error=on_error, totals=totals))
        epoch.add(sums(3 - bad, 7, bad))
        epoch.check("evaluation", "", "")
        epoch.check_totals({"bits_per_byte": {"num_bytes": 8}}, "")
    epoch = epoch_of(of(totals={"num_bytes": 9}))
    with pytest.raises(
        EvaluationError, match="'bits_per_byte' added up num_bytes=8; the dataset states 9"
    ):
        epoch.check_totals({"bits_per_byte": {"num_bytes": 8}}, "")
