"""The corners of the metrics: ties, NaN, nothing to divide by, float64 sums, and what does not fit."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError, OptionError
from trainer.metrics.binary import AUC, PrecisionRecall
from trainer.metrics.classes import Accuracy, ConfusionMatrix, PerClass, TopK
from trainer.metrics.means import Mean, Perplexity, Regression
from trainer.metrics.tally import computed, empty_tallies, with_batch
from trainer.metrics.tokens import BitsPerByte, TokenAccuracy

NAN = float("nan")


@functools.cache
def program(function):
    """One program for each of its shapes; operation by operation it would be a dozen."""
    return jax.jit(function)


def value(metric, outputs, mask=None, **batch):
    """Over one batch of these rows."""
    batch = {name: np.asarray(rows) for name, rows in batch.items()}
    mask = np.ones(len(next(iter(batch.values()))), bool) if mask is None else np.asarray(mask)
    state = program(metric.from_batch)(
        np.asarray(outputs, np.float32), batch | {"_mask": mask}, mask
    )
    return metric.compute({name: np.asarray(leaf) for name, leaf in state.items()})


def right(metric, logits, labels):
    batch = {"label": np.asarray(labels), "_mask": np.ones(len(labels))}
    return program(metric)(np.asarray(logits, np.float32), batch).tolist()


def test_equal_logits_are_ranked_by_class_number_as_in_argmax():
    equal = np.zeros((4, 4))
    assert right(Accuracy("label"), equal, [0, 1, 2, 3]) == [True, False, False, False]
    assert right(TopK(3, "label"), equal, [0, 1, 2, 3]) == [True, True, True, False]
    assert value(ConfusionMatrix("label"), equal, label=[0, 1, 2, 3])[:, 0].tolist() == [1, 1, 1, 1]


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=4, max_size=4))
@settings(max_examples=10, deadline=None)
def test_top_1_equals_accuracy_and_top_k_of_all_classes_is_always_right(logits):
    labels = [0, 1, 2, 2]
    expected = (np.argmax(logits, 1) == labels).tolist()
    assert (
        right(Accuracy("label"), logits, labels)
        == right(TopK(1, "label"), logits, labels)
        == expected
    )
    assert right(TopK(3, "label"), logits, labels) == [True] * 4


def test_a_record_with_a_nan_is_never_right():
    logits = [[NAN, 1, 0], [1, NAN, 0], [NAN, NAN, NAN], [1, 0, 0]]
    for metric in (Accuracy("label"), TopK(3, "label")):
        assert right(metric, logits, [0, 0, 0, 0]) == [False] * 3 + [True]


@pytest.mark.parametrize(
    "metric", [Accuracy("label"), TopK(2, "label"), ConfusionMatrix("label"), PerClass("label")]
)
def test_a_metric_of_classes_tells_labels_that_are_none_of_them(metric):
    batch = {"label": jnp.array([0, -1, 3, 2]), "_mask": jnp.ones(4)}
    outside, allowed = metric.outside(jnp.eye(4, 3), batch)
    assert (outside.tolist(), allowed) == ([False, True, True, False], "0..2")


def test_a_row_that_does_not_count_may_have_any_label():
    given = {"mask": [True, False, False, True], "label": [0, -1, 3, 1]}
    assert value(ConfusionMatrix("label"), np.eye(4, 3), **given).sum() == 2
    assert value(PerClass("label"), np.eye(4, 3), **given)["support"].tolist() == [1, 1, 0]


def test_a_metric_without_a_denominator_is_nan_and_excluded_from_means():
    found = value(PerClass("label"), np.eye(3)[[0, 1, 0]], label=[0, 0, 0])
    assert str(found["recall"].tolist()) == "[0.6666666666666666, nan, nan]"
    assert str(found["precision"].tolist()) == "[1.0, 0.0, nan]"
    assert (found["macro_recall"], found["macro_precision"], found["macro_f1"]) == (2 / 3, 0.5, 0.4)
    nothing = value(PerClass("label"), np.eye(3), label=[0, 1, 2], mask=[False] * 3)
    assert np.isnan(nothing["macro_recall"])
    none_predicted = value(PrecisionRecall("yes"), [0.1, 0.2], yes=[0, 1])
    assert (str(none_predicted["precision"]), none_predicted["recall"], none_predicted["f1"]) == (
        "nan",
        0.0,
        0.0,
    )
    assert np.isnan(value(PrecisionRecall("yes"), [0.1, 0.6], yes=[0, 0])["recall"])
    assert np.isnan(value(Mean("a", "w"), 0, a=[1.0], w=[0.0]))


def test_a_score_equal_to_the_threshold_counts_as_positive():
    assert (
        value(PrecisionRecall("yes", threshold=0.5), [0.5, 0.4], yes=[True, False])["recall"] == 1.0
    )


@pytest.mark.parametrize("metric", [PrecisionRecall("yes"), AUC("yes")], ids=repr)
def test_a_score_that_is_nan_makes_nan_and_labels_other_than_0_and_1_are_outside(metric):
    assert all(np.isnan(each) for each in value(metric, [0.1, NAN, 0.7], yes=[0, 1, 1]).values())
    assert not any(
        np.isnan(each) for each in value(metric, [0.1, NAN, 0.7], [1, 0, 1], yes=[0, 1, 1]).values()
    )
    outside, allowed = metric.outside(None, {"yes": jnp.array([0, -1, 1]), "_mask": jnp.ones(3)})
    assert (outside.tolist(), allowed) == ([False, True, False], "0..1")


@pytest.mark.parametrize("yes", [[0, 0], [1, 1]], ids=["only no", "only yes"])
def test_the_area_of_one_class_alone_is_nan(yes):
    assert all(np.isnan(each) for each in value(AUC("yes"), [0.1, 0.2], yes=yes).values())


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 31]))  # a number of bins is a program
@settings(max_examples=20, deadline=None)
def test_the_area_is_off_by_no_more_than_it_says_for_any_scores_and_bins(seed, bins):
    rng = np.random.default_rng(seed)
    scores, yes = rng.normal(0.5, 0.5, 40).astype(np.float32), np.arange(40) % 3 == 0
    found = value(AUC("yes", bins=bins), scores, yes=yes)
    assert abs(found["roc"] - sk.roc_auc_score(yes, scores)) <= found["roc_error"] + 1e-12


@pytest.mark.parametrize(
    ("scores", "roc"),
    [
        ((0.25, 0.49), 0.5),
        ((0.24, 0.25), 1.0),
        ((0.0, 0.24), 0.5),
        ((0.76, 1.0), 0.5),
        ((0.74, 0.75), 1.0),
    ],
)
def test_two_scores_are_a_tie_where_they_share_a_bin_and_a_border_belongs_to_the_bin_above(
    scores, roc
):
    found = value(AUC("yes", bins=4), scores, yes=[0, 1])
    assert (found["roc"], found["roc_error"]) == (roc, 0.5 if roc == 0.5 else 0.0)


def test_scores_on_bins_of_any_range_are_exact():
    rng = np.random.default_rng(0)
    scores, yes = rng.integers(-300, 300, 200) / 4, rng.integers(0, 2, 200)
    found = value(AUC("yes", bins=600, low=-75, high=75), scores, yes=yes)
    assert found["roc"] == pytest.approx(sk.roc_auc_score(yes, scores), abs=1e-15)
    assert found["average_precision"] == pytest.approx(
        sk.average_precision_score(yes, scores), abs=1e-14
    )
    beyond = value(AUC("yes", bins=600, low=-75, high=75), scores * 1e30, yes=yes)
    assert beyond["roc_error"] > 0.2  # three bins left: the metric says that they are too few


def test_values_with_weight_zero_do_not_count_even_if_nan():
    assert value(Mean("a", "w"), 0, a=[[1.0, NAN], [3.0, NAN]], w=[[1, 0], [3, 0]]) == 2.5


def test_a_perplexity_beyond_float64_is_infinite():
    assert value(Perplexity(losses="a"), 0, a=[1e4]) == np.inf
    assert value(Perplexity(losses="a"), 0, a=[0.0]) == 1.0


IMAGES = np.zeros((2, 3))
TOKENS = np.zeros((2, 4))
OF_TEXT = BitsPerByte("counts", "nats", "label")
MISFITS = [
    (Accuracy("labl"), IMAGES, "the batch has no 'labl'"),
    (Accuracy("label", "logit"), {"logits": 1}, "expected a dict with 'logit'"),
    (Accuracy("label"), {"logits": 1}, "expected one array"),
    (AUC("label", "score"), None, "outputs are NoneType"),
    (Accuracy("image"), IMAGES, r"labels have the shape \[2, 4\]"),
    (Accuracy("score"), IMAGES, "labels are float32"),
    (PerClass("label"), np.zeros((2, 5, 3)), r"logits have the shape \[2, 5, 3\]"),
    (TopK(4, "label"), IMAGES, "k=4 exceeds the number of classes"),
    (PrecisionRecall("label"), IMAGES, r"scores have the shape \[2, 3\]"),
    (AUC("label", lambda o, b: b["label"]), None, "scores are int32"),
    (Mean("image", "score"), None, r"values have the shape \[2, 4\] and the weights \[2\]"),
    (replace(OF_TEXT, num_bytes="score"), {"nats": TOKENS}, "num_bytes are float32; expected integers"),
    (replace(OF_TEXT, num_bytes="image"), {"nats": TOKENS}, r"num_bytes have the shape \[2, 4\]; expected \[2\], one per rec"),
    (OF_TEXT, {"nats": np.ones(2)}, r"the counts are bool \[2, 4\] and their values \[2\]; expected bool"),
    (replace(OF_TEXT, counts="image"), {"nats": TOKENS}, r"counts are float32 \[2, 4\] and their values \[2, 4\]"),
    (TokenAccuracy("targets", "counts"), TOKENS, r"the logits have the shape \[2, 4\]"),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "outputs", "text"), MISFITS)
def test_shapes_that_do_not_fit_a_metric_are_refused_during_tracing(metric, outputs, text):
    mask = jnp.ones(2, bool)
    batch = {
        "label": jnp.zeros(2, jnp.int32),
        "score": jnp.zeros(2),
        "image": jnp.zeros((2, 4)),
        "counts": jnp.ones((2, 4), bool),
        "targets": jnp.zeros((2, 4), jnp.int32),
        "_mask": mask,
    }
    with pytest.raises(InputError, match=text):
        metric(outputs, batch) if callable(metric) else metric.from_batch(outputs, batch, mask)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (TopK, {"k": 0}, "k=0"),
        (AUC, {"bins": 0}, "bins=0"),
        (AUC, {"bins": 2**25}, "bins=33554432"),
        (AUC, {"low": 1, "high": 1}, "low=1 and high=1"),
        (AUC, {"high": np.inf}, "high=inf"),
    ],
)
def test_invalid_metric_settings_are_refused(kind, options, text):
    with pytest.raises(OptionError, match=text):
        kind(labels="label", **options)


METRICS = {"r": Regression("y")}
BATCH = 64


def found(y, p, mask, metrics=METRICS):
    """Over the rows of the mask, in batches, as an evaluation counts them."""
    batches = [
        (
            {"y": jnp.array(y[at : at + BATCH]), "_mask": jnp.array(mask[at : at + BATCH])},
            jnp.array(p[at : at + BATCH]),
        )
        for at in range(0, len(y), BATCH)
    ]
    losses = jnp.zeros(BATCH)
    tallies, _ = empty_tallies(losses, batches[0][1], batches[0][0], metrics)
    step = jax.jit(
        lambda tallies, outputs, batch: with_batch(tallies, losses, outputs, batch, metrics)
    )
    for batch, outputs in batches:
        tallies = step(tallies, outputs, batch)
    return {
        name.removeprefix("r/"): value
        for name, value in computed(jax.device_get(tallies), metrics)[0].items()
    }


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (150, 77), (1e-3, 1e-3), (1e6, 1e6)])
def test_the_numbers_are_those_of_scikit_learn(offset, scale):
    rng = np.random.default_rng(0)
    y = (offset + scale * rng.normal(size=2048)).astype(np.float32)
    p = (y + scale * rng.normal(size=2048) / 2).astype(np.float32)
    mask = (np.arange(2048) % 7 > 0).astype(np.float32)
    mine = found(y, np.where(mask, p, np.nan).astype(np.float32), mask)
    y, p = (each[mask > 0].astype(np.float64) for each in (y, p))
    expected = {
        "mean_absolute_error": sk.mean_absolute_error(y, p),
        "rmse": sk.root_mean_squared_error(y, p),
        "r2": sk.r2_score(y, p),
        "correlation": np.corrcoef(y, p)[0, 1],
    }
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        assert mine[name] == pytest.approx(value, rel=1e-12), name


def test_a_unit_changes_no_bit_and_allows_numbers_whose_squares_exceed_float32():
    rng = np.random.default_rng(0)
    y = rng.normal(size=256).astype(np.float32)
    p = (y + rng.normal(size=256) / 2).astype(np.float32)
    ones, large = np.ones(256, np.float32), np.float32(2**62)
    plain = found(y, p, ones)
    metrics = {"r": Regression("y", unit=2.0**20)}
    assert found(y, p, ones, metrics) == plain
    assert math.isnan(found(y * large, p * large, ones)["rmse"])
    of_large = found(y * large, p * large, ones, metrics)
    scales = {"mean_absolute_error": 2**62, "rmse": 2**62}
    assert of_large == {name: value * scales.get(name, 1) for name, value in plain.items()}


def test_what_is_undefined_is_nan():
    constant, ones = np.full(BATCH, 3, np.float32), np.ones(BATCH, np.float32)
    assert found(constant, constant + 1, ones)["rmse"] == 1
    assert math.isnan(found(constant, constant + 1, ones)["r2"])
    assert all(map(math.isnan, found(constant, constant, 0 * ones).values()))
    assert all(map(math.isnan, found(constant, constant * np.float32("nan"), ones).values()))
