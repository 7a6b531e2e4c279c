"""Every metric: scikit-learn's number over a whole split, however its records are cut into batches and devices."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import TrainerConfig
from trainer.loop.evaluate import compare_paddings
from trainer.loop.evaluation import Evaluation
from trainer.loop.job import Job
from trainer.loop.session import open_session
from trainer.mesh.placement import Placement
from trainer.metrics.binary import AUC, PrecisionRecall
from trainer.metrics.classes import Accuracy, ConfusionMatrix, PerClass, TopK
from trainer.metrics.means import Mean, Perplexity, Regression
from trainer.metrics.tokens import BitsPerByte, TokenAccuracy
from trainer.task import Metric, Task, TrainState, Variables

RECORDS, BATCH, CLASSES = 37, 8, 5


def split():
    """Scores on a grid on which sums in float32 are exact; class 4 has no record, class 3 is never predicted."""
    rng = np.random.default_rng(3)
    logits = np.stack([rng.permutation(CLASSES) for _ in range(RECORDS)]).astype(np.float32)
    logits[:, 3] = -1
    return {
        "logits": logits,
        "label": rng.integers(0, CLASSES - 1, RECORDS).astype(np.int32),
        "score": (rng.integers(0, 32, RECORDS) / 32).astype(np.float32),
        "yes": rng.integers(0, 2, RECORDS).astype(np.int32),
        "values": (rng.integers(-40, 40, (RECORDS, 3)) / 8).astype(np.float32),
        "tokens": rng.integers(0, 3, (RECORDS, 3)).astype(np.int32),
        "losses": (rng.integers(1, 40, RECORDS) / 8).astype(np.float32),
        "size": rng.integers(2**20, 2**26, RECORDS).astype(np.int32),
        "target": rng.integers(0, 4, (RECORDS, 3)).astype(np.int32),
        "logits_of_tokens": rng.standard_normal((RECORDS, 3, 4)).astype(np.float32),
    }


@dataclass(frozen=True)
class Furthest(Metric):
    """A user's own, with a merge of its own: the range of a value."""

    def from_batch(self, outputs, batch, mask):
        first = batch["values"][:, 0]
        return np.float32(-1) * first.min(where=mask, initial=np.inf), first.max(
            where=mask, initial=-np.inf
        )

    def merge(self, first, second):
        return jax.tree.map(jax.numpy.maximum, first, second)

    def compute(self, state):
        return state[0] + state[1]


def logits_of(outputs, batch):
    return outputs["logits"]


def expected_per_class(data):
    predicted = data["logits"].argmax(1)
    values = sk.precision_recall_fscore_support(
        data["label"], predicted, labels=range(CLASSES), zero_division=np.nan, average=None
    )
    named = dict(zip(["precision", "recall", "f1", "support"], values, strict=True))
    return named | {
        f"macro_{name}": np.nanmean(named[name]) for name in ("precision", "recall", "f1")
    }


def expected_binary(data):
    above = data["score"] >= 0.25
    return {
        name: function(data["yes"], above)
        for name, function in {
            "precision": sk.precision_score,
            "recall": sk.recall_score,
            "f1": sk.f1_score,
        }.items()
    }


def expected_areas(data):
    roc, ap = (
        sk.roc_auc_score(data["yes"], data["score"]),
        sk.average_precision_score(data["yes"], data["score"]),
    )
    same = data["score"][data["yes"] == 1][:, None] == data["score"][data["yes"] == 0]
    return {"roc": roc, "average_precision": ap, "roc_error": same.mean() / 2}


def uneven(outputs, batch):
    """Weights that are not 0: tokens that count."""
    return batch["tokens"] > 0


def bits_per_byte(data):
    return data["values"][data["tokens"] > 0].sum() / np.log(2) / data["size"].sum(dtype=np.int64)


def token_accuracy(data):
    counts = data["tokens"] > 0
    return sk.accuracy_score(data["target"][counts], data["logits_of_tokens"].argmax(2)[counts])


def expected_regression(data):
    y, p = data["score"].astype(np.float64), data["values"][:, 0].astype(np.float64)
    return {
        "mean_absolute_error": sk.mean_absolute_error(y, p),
        "rmse": sk.root_mean_squared_error(y, p),
        "r2": sk.r2_score(y, p),
        "correlation": np.corrcoef(y, p)[0, 1],
    }


def top_2(data):
    return sk.top_k_accuracy_score(data["label"], data["logits"], k=2, labels=range(CLASSES))


METRICS: dict[str, tuple[Any, Any]] = {
    "accuracy": (
        Accuracy("label", "logits"),
        lambda d: sk.accuracy_score(d["label"], d["logits"].argmax(1)),
    ),
    "top_2": (TopK(2, "label", logits_of), top_2),
    "confusion": (
        ConfusionMatrix("label", "logits"),
        lambda d: sk.confusion_matrix(d["label"], d["logits"].argmax(1), labels=range(CLASSES)),
    ),
    "per_class": (PerClass("label", "logits"), expected_per_class),
    "binary": (PrecisionRecall("yes", "score", threshold=0.25), expected_binary),
    "area": (AUC("yes", "score", bins=32), expected_areas),
    "mean": (Mean("values", "tokens"), lambda d: np.average(d["values"], weights=d["tokens"])),
    "perplexity": (Perplexity(), lambda d: np.exp(d["losses"].mean(dtype=np.float64))),
    "of tokens": (
        Perplexity(weights="tokens", losses="values"),
        lambda d: np.exp(np.average(d["values"], weights=d["tokens"])),
    ),
    "bits_per_byte": (BitsPerByte(uneven, lambda o, batch: batch["values"], "size"), bits_per_byte),
    "token_accuracy": (
        TokenAccuracy("target", uneven, lambda o, batch: batch["logits_of_tokens"]),
        token_accuracy,
    ),
    "regression": (
        Regression("score", lambda o, batch: batch["values"][:, 0]),
        expected_regression,
    ),
    "own value": (
        lambda outputs, batch: batch["_losses"] * 2,
        lambda d: 2 * d["losses"].mean(dtype=np.float64),
    ),
    "own merge": (Furthest(), lambda d: np.ptp(d["values"][:, 0])),
}


def evaluation_of(stack, input_fn, devices, k):
    """Of a task that gives what the batch says, so that only the metrics compute. It lives as long as the stack."""

    def loss_fn(variables, batch, rng, train):
        return batch["losses"], variables, {"logits": batch["logits"], "score": batch["score"]}

    task = Task(
        lambda *_: Variables(()),
        loss_fn,
        optax.sgd(1),
        {name: row[0] for name, row in METRICS.items()},
    )
    config = TrainerConfig(workdir="unused", global_batch_size=BATCH, iterations_per_loop=k)
    job = Job(task, config, Placement.of(jax.devices()[:devices]))
    session = stack.enter_context(open_session(job))
    state = TrainState(jnp.int32(0), Variables(()), (), jnp.zeros(2, jnp.uint32))
    return Evaluation(session, job.open("eval", input_fn), state, 0)


@pytest.fixture(scope="module")
def stack():
    with ExitStack() as stack:
        yield stack


def bits(result):
    numbers = {name: value.hex() for name, value in result.metrics.items()}
    return numbers | {name: array.tobytes() for name, array in result.arrays.items()}


@pytest.fixture(scope="module")
def whole(make_input, stack):
    """The Evaluation of the split in order on four devices, all five steps in one scan, and its result."""
    evaluation = evaluation_of(stack, lambda ctx: make_input(split(), ctx), devices=4, k=5)
    return evaluation, evaluation.epoch()


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_has_the_number_that_scikit_learn_has(whole, name):
    result, expected = whole[1], METRICS[name][1](split())
    assert (result.records, result.proven) == (RECORDS, True)
    found = {**result.metrics, **result.arrays}
    mine = {key: value for key, value in found.items() if key == name or key.startswith(f"{name}/")}
    wanted = (
        {f"{name}/{key}": value for key, value in expected.items()}
        if isinstance(expected, dict)
        else {name: expected}
    )
    assert mine.keys() == wanted.keys()
    better = getattr(METRICS[name][0], "better", None)
    if isinstance(better, dict):  # as keep_best knows its numbers
        numbers = {key for key in mine if key in result.metrics}
        assert {f"{name}/{key}" for key in better} == numbers
    for key, value in wanted.items():
        np.testing.assert_allclose(mine[key], value, rtol=1e-14, err_msg=key)


def test_scalar_metrics_are_floats_and_array_metrics_are_separate(whole):
    result = whole[1]
    assert {type(value) for value in result.metrics.values()} == {float}
    assert sorted(result.arrays) == [
        "confusion",
        *(f"per_class/{name}" for name in ("f1", "precision", "recall", "support")),
    ]
    assert result.arrays["confusion"].dtype == np.int64
    assert result.arrays["confusion"].sum() == RECORDS


def test_padding_of_the_last_batch_changes_no_bit_of_any_metric(whole):
    evaluation, result = whole
    assert evaluation.padding_rows == 3
    compare_paddings(evaluation, result)


@pytest.fixture(scope="module")
def in_any_order(stack):
    """in_any_order(batches, padding): an epoch over these batches, on one device, step by step."""
    empty = {key: array[:1].repeat(BATCH, 0) for key, array in split().items()}
    batches = [empty]
    evaluation = evaluation_of(stack, lambda ctx: batches, devices=1, k=1)
    evaluation.epoch()  # every one after it asks for the input again

    def epoch(others, padding):
        batches[:] = others
        return evaluation.epoch(padding)

    return epoch


@given(st.permutations(range(RECORDS + 19)), st.integers(0, 2))
@settings(max_examples=10, deadline=None)
def test_metrics_have_the_same_bits_for_any_order_and_batching(whole, in_any_order, rows, padding):
    batches = []
    for start in range(0, len(rows), BATCH):
        ids = np.array(rows[start : start + BATCH])
        batch = {key: array[ids % RECORDS] for key, array in split().items()}
        batches.append(batch | {"_mask": (ids < RECORDS).astype(np.float32)})
    assert bits(in_any_order(batches, padding)) == bits(whole[1])


def test_the_state_of_metrics_is_updated_in_place(whole):
    epoch = whole[0].exact_epoch
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(epoch._make_carry()))
    for executable in epoch.program.executables.values():
        assert executable.memory_analysis().alias_size_in_bytes >= state
