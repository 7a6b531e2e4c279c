"""The page of an evaluation: its numbers are NumPy's, and it shows the records that are worst."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from read_page import read_page

from pipeline.pages.page import Share
from pipeline.pages.shown_records import show_records
from pipeline.shards.schema import Labels
from pipeline.sources.open_dataset import open_dataset
from trainer.commands.evaluation_page import evaluation_page, find_classes, joined, worst
from trainer.results import EvalResult, EvaluatedRecords

RECORDS, CLASSES = 500, 4
NAMES = Labels("label", 1, ("cat", "dog", "<script>alert(1)</script>", "mouse"))


@pytest.fixture(scope="module")
def evaluated():
    """The records of an evaluation that was right for about half of 500 records, with labels from 1."""
    rng = np.random.default_rng(0)
    label = rng.integers(1, 1 + CLASSES, RECORDS)
    predicted = np.where(rng.random(RECORDS) < 0.5, label, rng.integers(1, 1 + CLASSES, RECORDS))
    predictions = {
        "class": predicted,
        "label": label,
        "probability": rng.random(RECORDS).astype(np.float32),
    }
    loss = rng.exponential(size=RECORDS).astype(np.float32)
    return EvaluatedRecords(np.arange(RECORDS, dtype=np.int32), loss, predictions)


@pytest.fixture(scope="module")
def images():
    """Records with a small image and a label each."""
    rng = np.random.default_rng(1)
    return open_dataset({"image": rng.integers(0, 256, (RECORDS, 8, 8, 1)).astype(np.uint8)})


def result_of(records, **changes):
    values = {
        "labelled": records,
        "masked": 0,
        "num_records": records,
        "crc": 7,
        "expected_crc": 7,
        "seconds": 1.0,
    } | changes
    return EvalResult(
        step=3, metrics={"accuracy": 0.5, "loss": 0.25}, records=records, **values | changes
    )


def page_of(result, records, **about):
    """The texts of the page, by section."""
    return read_page(evaluation_page(result, records, "line", {}, **about))


def test_the_confusions_and_the_shares_of_each_class_are_numpys(evaluated):
    label, predicted = (evaluated.predictions[key] - 1 for key in ("label", "class"))
    expected = np.zeros((CLASSES, CLASSES), int)
    np.add.at(expected, (label, predicted), 1)
    classes = find_classes(evaluated.loss, evaluated.predictions, NAMES, NAMES)
    (names, counts), table = classes.matrix(), classes.table()
    np.testing.assert_array_equal(counts, expected)
    assert tuple(names) == NAMES.names
    for name, records, recall, precision, f1, loss in table:
        at = NAMES.names.index(name)
        hits, of_label, of_class = expected[at, at], expected[at].sum(), expected[:, at].sum()
        assert records == of_label
        assert (recall, precision) == pytest.approx((hits / of_label, hits / of_class))
        assert f1 == pytest.approx(2 * hits / (of_label + of_class))
        assert loss == pytest.approx(evaluated.loss[label == at].mean(dtype=np.float64))
    assert [row[4] for row in table] == sorted(row[4] for row in table)
    np.fill_diagonal(expected, 0)
    assert [row[2] for row in classes.pairs()] == sorted(
        expected[expected > 0].tolist(), reverse=True
    )


def test_the_confusion_matrix_shows_the_classes_with_the_most_mistakes():
    label = np.repeat(np.arange(60), 10)
    predicted = label.copy()
    predicted[label >= 40] = (
        label[label >= 40] - 39
    ) % 60  # 40..59 are taken for 1..20, 1..20 never
    loss = np.zeros(len(label), np.float32)
    predictions = {"class": predicted, "label": label}
    names, counts = find_classes(loss, predictions, None, None).matrix()
    assert names == [
        *(str(number) for number in [*range(1, 21), *range(40, 45)]),
        "others",
    ]
    assert counts[20] == [10, *[0] * 25]  # of the label 40, all taken for 1
    assert counts[25] == [*[0] * 5, *[10] * 15, *[0] * 6]  # 45..59 are taken for 6..20
    page = page_of(result_of(600), EvaluatedRecords(None, loss, predictions))
    note = (
        "The 25 of 60 classes with the most mistakes, and all others together. Records whose label"
    )
    assert page["Confusion matrix"][-1].startswith(note)
    assert sum(isinstance(row, tuple) for row in page["Classes"]) == 1 + 60 + 1 + 20  # pairs


def test_classes_are_matched_by_their_place_where_model_and_data_number_them_from_different_bases():
    zero, one = Labels("class", 0, ("cat", "dog")), Labels("label", 1, ("cat", "dog"))
    predictions = {"class": np.array([0, 1, 1]), "label": np.array([1, 2, 1])}
    classes = find_classes(np.zeros(3, np.float32), predictions, zero, one)
    assert classes.wrong.tolist() == [False, False, True]
    assert classes.names == ("cat", "dog")


def test_the_worst_come_first_then_by_number_and_a_loss_that_is_not_a_number_is_the_worst():
    scores = np.array([1.0, 3.0, np.nan, 3.0, np.inf, 2.0], np.float32)
    assert worst(scores, 5).tolist() == [2, 4, 1, 3, 5]
    assert worst(scores, 9, np.array([True, False, False, True, False, True])).tolist() == [3, 5, 0]


def test_the_page_shows_the_worst_mistakes_with_their_pictures(evaluated, images):
    collected = []
    for part in np.array_split(np.arange(RECORDS), 7):
        predictions = {key: values[part] for key, values in evaluated.predictions.items()}
        collected.append(EvaluatedRecords(evaluated.index[part], evaluated.loss[part], predictions))
    html = evaluation_page(
        result_of(RECORDS),
        joined(collected),
        "mnist",
        {},
        class_names=NAMES,
        label_names=NAMES,
        show=partial(show_records, images),
    )
    page = read_page(html)
    wrong = np.flatnonzero(evaluated.predictions["class"] != evaluated.predictions["label"])
    order = wrong[np.argsort(-evaluated.loss[wrong], kind="stable")[:24]]
    note, *texts = page["Worst mistakes"]
    assert note == "Those with the largest losses first."
    assert [text for text in texts if text.startswith("record ")] == [
        f"record {at}" for at in order
    ]
    label, predicted = (
        NAMES.names[evaluated.predictions[key][order[0]] - 1] for key in ("label", "class")
    )
    assert texts[:3] == [
        f"{label}, taken for {predicted}",
        f"{100 * evaluated.predictions['probability'][order[0]]:.3g} % sure",
        f"loss {evaluated.loss[order[0]]:.3g}",
    ]
    assert list(page)[:3] == ["", "Worst mistakes", "Confusion matrix"]
    assert html.count("<details>") == 1 + len(list(page)[3:])  # 12 of the pictures, and the rest
    figures = ["50 %", "accuracy", f"{len(wrong)} mistakes in 500 records", "0.25", "loss"]
    assert page[""][:5] == figures
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert html.count("<img ") == 24


def test_a_page_without_mistakes_says_so_and_shows_the_largest_losses():
    label = np.array([1, 2])
    records = EvaluatedRecords(
        None, np.array([0.5, 1], np.float32), {"class": label, "label": label}
    )
    page = page_of(result_of(2), records)
    assert page["Worst records"] == [
        "Every prediction is right. Those with the largest losses first.",
        *(("loss", "label", "prediction"), ("1", "2", "2"), ("0.5", "1", "1")),
    ]
    assert "Most often confused" not in page["Classes"]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "proven: every record that was due counted exactly once"),
        ({"masked": 2, "num_records": 5}, "not proven: 2 bad records were left out"),
        (
            {"num_records": None, "expected_crc": None},
            "not proven: the input does not state which records are due",
        ),
    ],
)
def test_the_page_states_whether_the_evaluation_is_proven(changes, verdict):
    records = EvaluatedRecords(None, np.ones(3, np.float32), {})
    html = evaluation_page(
        result_of(3, **changes), records, "line", {"checkpoint": "runs/3", "split": "test"}
    )
    assert "<p>test, checkpoint runs/3, took 1 s</p>" in html
    page = read_page(html)
    assert page[""][-1] == verdict
    metrics, proof = page["All metrics and their proof"][2:4], page["All metrics and their proof"]
    assert metrics == [("accuracy", "50 %"), ("loss", "0.25")]
    for row in (("verdict", verdict), ("sum of checksums", "00000007"), ("checkpoint", "runs/3")):
        assert row in proof


def test_without_classes_or_numbers_the_page_shows_losses_alone():
    loss = np.array([0.5, np.nan, 2.0], np.float32)
    predictions = {"nats": np.arange(3), "class": loss, "label": loss}
    page = page_of(result_of(3), EvaluatedRecords(None, loss, predictions))
    assert "Classes" not in page
    assert page["Losses"][-1] == (
        "This page has no table of classes: it needs the predictions 'class' and 'label', each one integer per record."
    )
    assert page["Worst records"][1:] == [
        *(("loss", "nats"), ("nan", "1"), ("2", "2"), ("0.5", "0")),
    ]


def test_metrics_are_written_as_people_read_them_and_why_one_is_not_finite():
    metrics = {"top_5_accuracy": 0.5, "perplexity": 123456.7, "nats": float("nan")}
    result = replace(
        result_of(3),
        metrics=metrics,
        totals={"num_bytes": 5},
        not_finite={"nats": "not finite for 3 of 3"},
        classes="classes not compared",
    )
    page = page_of(result, EvaluatedRecords(None, np.ones(3, np.float32), {}))
    assert page["All metrics and their proof"][2:6] == [
        *(
            ("top 5 accuracy", "50 %"),
            ("perplexity", "123,457"),
            ("nats", "nan"),
            ("num bytes", "5"),
        ),
    ]
    assert page[""][-2:] == ["nats is not finite for 3 of 3.", "Classes not compared."]


def test_predictions_with_the_names_of_other_columns_are_told_apart(images):
    predictions = {name: np.arange(3) for name in ("nats", "record", "where")}
    records = EvaluatedRecords(
        np.array([7, 8, 9], np.int32),
        np.array([0.5, 3.0, 2.0], np.float32),
        {"loss": np.arange(3.0), **predictions},
    )
    names = ["loss", "predicted loss", "nats", "predicted record", "predicted where"]
    (table, grid) = (
        page_of(result_of(3), records, show=show)["Worst records"][1:]
        for show in (None, partial(show_records, images))
    )
    assert table[:2] == [("record", *names), ("8", "3", "1", "1", "1", "1")]
    values = ("3", "1", "1", "1", "1")
    assert grid[:6] == [*map(" ".join, zip(names, values, strict=True)), "record 8"]


def test_a_class_that_was_only_predicted_has_empty_cells_as_the_note_explains():
    classes = find_classes(
        np.ones(2), {"class": np.array([0, 1]), "label": np.array([0, 0])}, None, None
    )
    assert classes.table() == [
        ("1", 0, None, 0.0, 0.0, None),
        ("0", 2, 0.5, 1.0, pytest.approx(2 / 3), 1.0),
    ]
    assert isinstance(classes.table()[1][2], Share)
