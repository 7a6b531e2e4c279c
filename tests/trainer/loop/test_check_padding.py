"""check_padding finds a task in which rows of padding reach the metrics, and no other."""

import itertools
import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import EvaluationError
from trainer.task import Task
from trainer.trainer import Trainer


@pytest.fixture
def trained(trainer):
    """trained(task): a Trainer of it with a model that has learnt; 16 records a step, up to 3 steps a dispatch."""
    return lambda task=trainer._job.task: Trainer(task, trainer.config, jax.devices()[:1])


def seeing(task: Task, change) -> Task:
    """The task, which sees `change(batch)` in place of x."""
    return replace(
        task,
        loss_fn=lambda v, batch, *rest: task.loss_fn(v, dict(batch) | {"x": change(batch)}, *rest),
    )


def centred(x, batch):
    return batch["x"] - x.sum(0) / batch["_mask"].sum()


def mask_of(batch):
    return batch["_mask"][:, None] > 0


MIXING = {
    "a mean by x * mask": lambda batch: centred(batch["x"] * mask_of(batch), batch),
    "the classes that the batch has": lambda batch: (
        batch["x"] * jnp.isin(jnp.arange(3), batch["label"]).sum()
    ),
}


def test_a_task_that_works_row_by_row_passes_with_the_metrics_of_a_plain_evaluation(
    trained, vector_input, caplog
):
    trainer = trained()
    plain = trainer.evaluate(vector_input)
    with caplog.at_level(logging.INFO, "trainer"):
        checked = trainer.evaluate(vector_input, check_padding=True)
    assert checked == replace(plain, seconds=checked.seconds)
    assert "the same bits, whatever is in the 12 rows of padding: zeros; NaN" in caplog.text


@pytest.mark.parametrize("kind", MIXING)
def test_check_padding_names_the_metric_that_mixing_rows_changes_and_the_remedy(
    trained, dense_task, vector_input, kind
):
    trainer = trained(seeing(dense_task, MIXING[kind]))
    plain = trainer.evaluate(vector_input).metrics["loss"]
    padding, found = (
        ("the largest values", "[0-9.]+") if "classes" in kind else (r"NaN \(in floats\)", "nan")
    )
    text = rf"with {padding} in place of zeros in rows of padding, (accuracy .*, )?loss is {found} and not {plain!r}"
    with pytest.raises(EvaluationError, match=text):
        trainer.evaluate(vector_input, check_padding=True)


def test_a_statistic_that_leaves_padding_out_by_where_passes(trained, dense_task, vector_input):
    task = seeing(
        dense_task, lambda batch: centred(jnp.where(mask_of(batch), batch["x"], 0), batch)
    )
    assert trained(task).evaluate(vector_input, check_padding=True).proven


def test_check_padding_compiles_no_additional_program(trained, dense_task, vector_input):
    traced = []
    trainer = trained(seeing(dense_task, lambda batch: traced.append(1) or batch["x"]))
    counts = []
    for check_padding in (False, True):
        traced.clear()
        trainer.evaluate(vector_input, check_padding=check_padding)
        counts.append(len(traced))
    assert counts == [2, 2]  # 7 batches: one for 3 steps a dispatch, one for the last


def test_a_plain_iterable_is_made_anew_for_each_epoch(trained, dense_task, vectors):
    def batches(ctx):
        for start in (0, 16):
            rows = {key: array[start : start + 16].copy() for key, array in vectors.items()}
            yield rows | {"_mask": (np.arange(start, start + 16) < 20).astype(np.float32)}

    assert trained().evaluate(batches, check_padding=True).records == 20
    with pytest.raises(EvaluationError, match="loss is nan and not"):
        trained(seeing(dense_task, MIXING["a mean by x * mask"])).evaluate(
            batches, check_padding=True
        )


def test_an_epoch_without_padding_says_that_nothing_was_checked(
    trained, vectors, make_input, caplog
):
    whole = {key: array[:48] for key, array in vectors.items()}
    trained().evaluate(lambda ctx: make_input(whole, ctx), check_padding=True)
    assert (
        "no row of padding, so nothing was checked. Choose an eval_batch_size that does not"
        in caplog.text
    )


def test_check_padding_distinguishes_nondeterminism_from_mixing_rows(
    trained, dense_task, vector_input
):
    numbers = itertools.count()

    def noisy(batch):
        noise = jax.pure_callback(
            lambda: np.float32(next(numbers)), jax.ShapeDtypeStruct((), np.float32)
        )
        return batch["x"] + noise

    with pytest.raises(
        EvaluationError,
        match=r"two epochs over the same padding differ, too: .* This program is not",
    ):
        trained(seeing(dense_task, noisy)).evaluate(vector_input, check_padding=True)
