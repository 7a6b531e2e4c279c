"""Masked sums; a user's own metric, its states, and what is refused before an epoch begins."""

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import EvaluationError, InputError, OptionError
from trainer.loop.evaluate import compare_paddings
from trainer.loop.evaluation import Evaluation
from trainer.loop.session import open_session
from trainer.metrics.classes import Accuracy, ConfusionMatrix
from trainer.metrics.tally import (
    blank_padding,
    computed,
    due_crc,
    empty_tallies,
    masked_mean,
    masked_sum,
    num_rows,
    with_batch,
)
from trainer.reports.progress import Speed
from trainer.results import EvalResult
from trainer.task import Metric, Task
from trainer.trainer import Trainer

MASK = jnp.array([1.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("padding", [0.0, np.nan, np.inf, -1e38])
def test_padding_does_not_reach_a_sum_or_a_mean(padding):
    values = jnp.array([1.0, padding, 4.0, padding])
    assert float(masked_sum(values, MASK)) == 5.0
    assert float(masked_mean(values, MASK)) == 2.5
    batch = blank_padding({"x": values, "_mask": MASK})
    assert batch["x"].tolist() == [1, 0, 4, 0]


@pytest.mark.parametrize(
    ("dtype", "nan", "largest"),
    [
        (jnp.float32, np.nan, np.finfo(np.float32).max),
        (jnp.bfloat16, np.nan, float(jnp.finfo(jnp.bfloat16).max)),
        (jnp.int32, 0, 2**31 - 1),
        (jnp.uint8, 0, 255),
        (jnp.bool_, False, True),
    ],
)
def test_a_check_may_fill_the_padding_of_every_type_with_other_values(dtype, nan, largest):
    batch = {"a": {"b": jnp.ones((4, 2), dtype)}, "_mask": MASK, "_index": jnp.arange(4)}
    for padding, value in enumerate([0, nan, largest]):
        filled = jax.jit(blank_padding)(batch, padding)
        assert filled["a"]["b"].dtype == dtype
        expected = np.array([[1, 1], [value, value]] * 2).astype(dtype)
        assert np.asarray(filled["a"]["b"]).tobytes() == expected.tobytes()
        assert filled["_index"].tolist() == [0, 1, 2, 3]


def test_a_gradient_is_finite_where_the_padding_is_not():
    def loss(w, x):
        batch = blank_padding({"x": x, "_mask": MASK})
        return masked_mean(jnp.square(w * batch["x"]), batch["_mask"])

    gradient = jax.grad(loss)(3.0, jnp.array([1.0, jnp.nan, 2.0, jnp.nan]))
    assert float(gradient) == 15.0


def test_a_mean_over_no_row_is_zero():
    assert float(masked_mean(jnp.array([jnp.nan, 2.0]), jnp.zeros(2))) == 0.0


def test_booleans_are_counted():
    assert float(masked_sum(jnp.array([True, True, True, False]), MASK)) == 2.0


def test_the_crc_sum_wraps_at_32_bits_and_skips_padding():
    crcs = np.array([2**32 - 1, 17, 3, 99], np.uint32)
    batch = {"_crc": jnp.asarray(crcs), "_mask": MASK}
    assert int(due_crc(batch)) == 2
    assert int(due_crc({"_mask": MASK})) == 0
    assert int(num_rows(batch["_mask"])) == 2


@dataclass(frozen=True)
class Own(Metric):
    """A metric of these functions."""

    of_batch: Any
    of_state: Any = lambda state: state

    def from_batch(self, outputs, batch, mask):
        return self.of_batch(outputs, batch, mask)

    def compute(self, state):
        return self.of_state(state)


class Merged(Own):
    def merge(self, first, second):
        return self.of_state(first, second)

    def compute(self, state):
        return state


def masked(outputs, batch, mask):
    return jnp.sum(jnp.where(mask, batch["x"], 0))


def epoch(metric, batches):
    """What the metric is over these batches, each of [rows] of x and of the mask."""
    return epoch_of({"own": metric}, batches)


def epoch_of(metrics, batches):
    """What they are."""
    batches = [
        {"x": jnp.asarray(x), "_mask": jnp.asarray(mask, jnp.float32)} for x, mask in batches
    ]
    losses = jnp.zeros(len(batches[0]["x"]))
    tallies, _ = jax.jit(lambda: empty_tallies(losses, None, batches[0], metrics))()
    step = jax.jit(lambda tallies, batch: with_batch(tallies, losses, None, batch, metrics))
    for batch in batches:
        tallies = step(tallies, batch)
    scalars, arrays = computed(jax.device_get(tallies), metrics)
    return {**scalars, **arrays}


def test_float_sums_are_near_those_of_float64():
    values = np.float32([1e8, *[0.1] * 999])
    total = values.astype(np.float64).sum()
    assert abs(np.add.accumulate(values)[-1] - total) > 50
    found = epoch(Own(masked), [([value], [1]) for value in values])["own"]
    assert found == pytest.approx(total, rel=1e-12)


def test_an_infinite_sum_is_infinite_and_no_nan():
    assert epoch(Own(masked), [([np.float32(value)], [1]) for value in (1, np.inf, 2)]) == {
        "own": np.inf
    }


def test_states_of_few_bits_do_not_overflow_or_round():
    def counting(dtype):
        return Own(lambda outputs, batch, mask: jnp.any(mask & (batch["x"] > 0)).astype(dtype))

    dtypes = ("bool", "uint8", "int8", "bfloat16", "float16")
    found = epoch_of({dtype: counting(dtype) for dtype in dtypes}, [([1, 0], [1, 0])] * 2100)
    assert found == dict.fromkeys(dtypes, 2100.0)  # float16 has no 2049


def test_a_state_may_be_any_tree_and_its_value_a_mapping():
    def of_batch(outputs, batch, mask):
        return {"n": (jnp.sum(mask),), "each": jnp.where(mask, batch["x"], 0)}

    metric = Own(
        of_batch, lambda state: {"mean": state["each"].sum() / state["n"][0], "each": state["each"]}
    )
    found = epoch(metric, [([1, 2], [1, 1]), ([3, 99], [1, 0])])
    assert found["own/mean"] == 2.0
    assert found["own/each"].tolist() == [4, 2]
    assert found["own/each"].dtype == np.int64


@pytest.fixture
def evaluation(dense_task, vector_input, config):
    """evaluation(name=metric, ...): the Evaluation of a dense model, untrained, on four devices."""
    with ExitStack() as stack:

        def make(**metrics):
            trainer = Trainer(replace(dense_task, metrics=metrics), config(iterations_per_loop=3))
            job = trainer._job
            session = stack.enter_context(open_session(job))
            opened = job.open("eval", vector_input)
            return Evaluation(session, opened, job.fresh_state(opened), 0)

        yield make


def test_a_metric_that_counts_padding_is_refused_before_the_epoch(evaluation):
    text = r"the metric 'size' counts rows of padding: .* leave these rows out with jnp.where\(mask, values, 0\)"
    with pytest.raises(InputError, match=text):
        evaluation(size=Own(lambda outputs, batch, mask: mask.size))


def test_a_metric_changed_by_padding_is_named_with_the_size_of_the_change(evaluation):
    def centred(logits, batch):
        return logits - logits.mean(0)

    mixing = evaluation(confusion=ConfusionMatrix("label", centred))
    with pytest.raises(
        EvaluationError, match=r"with NaN .* confusion differs in \d of its 9 numbers\. Some"
    ):
        compare_paddings(mixing, mixing.epoch())


def test_training_reports_only_per_record_metrics_and_evaluation_reports_all(
    dense_task, vector_input, config
):
    metrics = {"accuracy": Accuracy("label"), "confusion": ConfusionMatrix("label")}
    trainer = Trainer(replace(dense_task, metrics=metrics), config())
    assert trainer.train(vector_input, steps=1).metrics.keys() == {"loss", "accuracy", "grad_norm"}
    result = trainer.evaluate(vector_input)
    assert result.metrics.keys() == {"loss", "accuracy"}
    assert np.trace(result.arrays["confusion"]) / 100 == result.metrics["accuracy"]


WRONG = {
    "a merge to another shape": (
        Merged(lambda o, b, mask: jnp.sum(mask), lambda first, second: jnp.stack([first, second])),
        r"merge returns int32 \[2\] for two states int32 \[\]. It must return the same structure.",
    ),
    "a state of complex numbers": (
        Own(lambda *_: jnp.zeros(2, jnp.complex64)),
        r"a state contains complex64 \[2\]. Allowed",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_state_that_cannot_be_carried_fails_before_the_first_step_of_training(
    dense_task, vector_input, config, kind
):
    metric, text = WRONG[kind]
    with pytest.raises(InputError, match=text) as caught:
        Trainer(replace(dense_task, metrics={"own": metric}), config()).train(vector_input, steps=1)
    assert caught.value.__notes__[0] == "in the metric 'own'"


def test_a_value_that_is_no_number_is_named():
    with pytest.raises(
        InputError, match=r"the metric own/a computes 'good'. Allowed: a number, an array"
    ):
        epoch(Own(masked, lambda state: {"a": "good"}), [([1], [1])])


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"acc": Accuracy}, r"the metric 'acc' is <class .*Accuracy'>. Allowed: a function\(outputs, batch\)"),
        ({"acc": 0.5}, "the metric 'acc' is 0.5. Allowed"),
        ({"a": Own(masked), "a/b": Accuracy("y")}, "'a/b' has the name of a value of the metric 'a'. Choose another"),
    ],
    ids=["a class", "a number", "a name in use"],
)  # fmt: skip
def test_a_task_with_an_invalid_metric_is_refused_when_it_is_created(dense_task, metrics, text):
    with pytest.raises(OptionError, match=text):
        replace(dense_task, metrics=metrics)


RESULT = EvalResult(1, {}, 2, 2, 0, 2, 3, 3, 1.0)
IN_A_LINE = {"step", "loss", "grad_norm", "_mask", *Speed(1.0, 2.0, 0.0, 0.5).scalars()}
IN_A_RESULT = {*asdict(RESULT), "proven"} - {"metrics", "arrays", "totals"}


@pytest.mark.parametrize("name", sorted(IN_A_LINE | IN_A_RESULT))
def test_a_metric_cannot_have_the_name_of_another_value_in_the_same_file(name):
    with pytest.raises(OptionError, match=rf"named '{name}'\. .* are reserved; choose another"):
        Task(lambda *_: None, lambda *_: None, None, {name: lambda *_: None})  # pyright: ignore[reportArgumentType]
