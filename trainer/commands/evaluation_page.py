"""The page of an evaluation: metrics with their proof, the worst mistakes, classes and their
confusions, losses. evaluation_page.html draws it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.pages.figures import histogram
from pipeline.pages.page import Share, page_html
from pipeline.pages.shown_records import MOST_NAME, ShownRecord, shortened
from pipeline.shards.schema import Labels
from pipeline.sizes import format_number, format_share
from trainer.results import EvalResult, EvaluatedRecords

TEMPLATE = Path(__file__).with_suffix(".html")
SHOWN, MOST_METRICS = 24, 100
OF_CLASSES = ("class", "label")
OF_RECORDS = ("text", "where")
MATRIX_CLASSES, TABLE_CLASSES, PAIRS = 25, 1_000, 20
Fact = str | int | float
Row = tuple[object, ...]
Show = Callable[[Sequence[int]], Sequence[ShownRecord]]
"""The records with some numbers."""


@dataclass(frozen=True)
class Classes:
    """The class of each record and the class predicted for it, as places [n] in `names` [c].

    `names` has the classes that occur, ordered by their numbers."""

    names: tuple[str, ...]
    label: np.ndarray
    predicted: np.ndarray
    loss: np.ndarray

    @cached_property
    def wrong(self) -> np.ndarray:
        """bool [n]: whether the prediction is not the label."""
        return self.label != self.predicted

    @property
    def mistakes(self) -> int:
        """The number of wrong predictions."""
        return int(self.wrong.sum())

    @cached_property
    def counts(self) -> list[np.ndarray]:
        """int64 [c] each: records of a class, records taken for it, and those in both."""
        columns = (self.label, self.predicted, self.label[~self.wrong])
        return [np.bincount(places, minlength=len(self.names)) for places in columns]

    def matrix(self) -> tuple[list[str], list[list[int]]]:
        """The names and counts of the confusion matrix: records by label and prediction. If the
        classes are many, of those with the most mistakes, and of all others together."""
        of_label, of_predicted, hits = self.counts
        mistakes = of_label + of_predicted - 2 * hits
        classes = np.sort(np.argsort(-mistakes, kind="stable")[:MATRIX_CLASSES])
        names = [self.names[place] for place in classes.tolist()]
        if others := len(self.names) > MATRIX_CLASSES:
            names.append("others")
        # The row of each class, and its column; all others share the last ones.
        place = np.full(len(self.names), len(classes))
        place[classes] = np.arange(len(classes))
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (place[self.label], place[self.predicted]), 1)
        if others:
            counts[-1, -1] = 0  # right or wrong
        return names, counts.tolist()

    def table(self) -> list[Row]:
        """Name, records, recall, precision, F1 and mean loss of each class, the lowest F1 first;
        None where there is no such number."""
        of_label, of_predicted, hits = self.counts
        loss = np.bincount(self.label, self.loss, len(self.names))
        with np.errstate(all="ignore"):  # a class without records has no recall
            shares = (hits / of_label, hits / of_predicted, 2 * hits / (of_label + of_predicted))
            means = (loss / of_label).tolist()
        records = of_label.tolist()
        losses = [mean if count else None for mean, count in zip(means, records, strict=True)]
        rows = list(zip(self.names, records, *map(_shares, shares), losses, strict=True))
        return [rows[at] for at in np.argsort(shares[2], kind="stable").tolist()]

    def pairs(self) -> list[Row]:
        """Label, prediction, records, and their share of the label's, of the pairs that are most
        often confused."""
        labels, predictions = (
            places[self.wrong].tolist() for places in (self.label, self.predicted)
        )
        pairs = Counter(sorted(zip(labels, predictions, strict=True)))
        of_label = self.counts[0]
        return [
            (self.names[label], self.names[predicted], count, Share(count / of_label[label]))
            for (label, predicted), count in pairs.most_common(PAIRS)
        ]


def find_classes(
    loss: np.ndarray,
    predictions: Mapping[str, np.ndarray],
    class_names: Labels | None,
    label_names: Labels | None,
) -> Classes | None:
    """The classes of an evaluation; None unless the task predicts `class` and `label`, each one
    integer per record.

    class_names, label_names: of the model and of the data, which may number the classes from
    different bases."""
    class_names = class_names or label_names
    label_names = label_names or class_names
    columns = list[np.ndarray]()
    for name, labels in (("class", class_names), ("label", label_names)):
        values = predictions.get(name)
        if values is None or values.dtype.kind not in "iu":
            return None
        columns.append(values.astype(np.int64) - (labels.base if labels else 0))
    places, inverse = np.unique(np.concatenate(columns), return_inverse=True)
    predicted, label = np.split(inverse, 2)
    names = list[str]()
    for place in places.tolist():
        number = place + (class_names.base if class_names else 0)
        name = class_names and class_names.name_of(number)
        names.append(str(number) if name is None else shortened(name, MOST_NAME))
    return Classes(tuple(names), label, predicted, loss.astype(np.float64))


def _shares(values: np.ndarray) -> list[Share | None]:
    return [Share(value) if np.isfinite(value) else None for value in values.tolist()]


def evaluation_page(
    result: EvalResult,
    records: EvaluatedRecords,
    recipe: str,
    facts: Mapping[str, str],
    *,
    class_names: Labels | None = None,
    label_names: Labels | None = None,
    show: Show | None = None,
    made_by: str = "",
) -> str:
    """The page of this result, with what the same evaluation passed to on_records. Its first three
    parts are open.

    recipe: its name. facts: others of the evaluation, by name, in the table of the proof.
    class_names, label_names: see find_classes. show: None if records cannot be read by number.
    made_by: see page_html."""
    classes = find_classes(records.loss, records.predictions, class_names, label_names)
    metrics = {
        name: (_words(name), Share(value) if "accuracy" in name else value)
        for name, value in result.metrics.items()
    }
    totals = [(_words(name), total) for name, total in result.totals.items()]
    first, *others = sorted(metrics, key=lambda name: (name != "accuracy", name == "loss"))
    second = ["loss"] if "loss" in others else others[:1]
    drawn = {
        "recipe": recipe,
        "result": result,
        "facts": facts,
        "made_by": made_by,
        "main_metrics": [(metrics[name][1], _words(name), "") for name in (first, *second)],
        "metrics": [*metrics.values()][:MOST_METRICS] + totals,
        "most_metrics": MOST_METRICS,
        "classes": classes,
        "most_classes": {"matrix": MATRIX_CLASSES, "table": TABLE_CLASSES},
        "losses": histogram(records.loss),
        "worst": _worst_records(records, classes, show),
    }
    return page_html(TEMPLATE, drawn)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _worst_records(
    records: EvaluatedRecords, classes: Classes | None, show: Show | None
) -> dict[str, Any]:
    """The worst mistakes, or the worst records if there are none: pictures with lines below them,
    and rows of a table, for records without pictures."""
    among = None
    if classes and classes.mistakes:
        among = classes.wrong | ~np.isfinite(records.loss)
    places = worst(records.loss, SHOWN, among)
    shown: Sequence[ShownRecord | None] = [None] * len(places)
    if records.index is not None and show:
        shown = show(records.index[places].tolist())
    pictures = []
    rows = []
    for place, record in zip(places.tolist(), shown, strict=True):
        facts = _facts(records, classes, place)
        if record and record.pictures:
            pictures.append((record.pictures[:1], _caption(facts, record)))
        facts["text"] = record.problem or " ".join(record.texts) if record else ""
        facts["where"] = record.where if record else ""
        rows.append(facts)
    return {
        "pictures": pictures,
        "names": [*map(_words, rows[0])],
        "rows": [[*each.values()] for each in rows],
    }


def _facts(records: EvaluatedRecords, classes: Classes | None, at: int) -> dict[str, Fact]:
    """What the evaluation knows of a record, by name."""
    facts = dict[str, Fact]()
    if records.index is not None:
        facts["record"] = int(records.index[at])
    facts["loss"] = float(records.loss[at])
    if classes:
        facts["label"] = classes.names[classes.label[at]]
        facts["prediction"] = classes.names[classes.predicted[at]]
    taken = {*facts, *OF_RECORDS}
    others = [name for name in records.predictions if name not in OF_CLASSES]
    for name in sorted(others, key=lambda name: name != "probability"):
        value = records.predictions[name][at].item()
        shown = f"predicted {name}" if name in taken else name
        facts[shown] = Share(value) if name == "probability" else value
    return facts


def _caption(facts: Mapping[str, Fact], record: ShownRecord) -> list[str]:
    """The lines below a picture: what it is and was taken for, the numbers, and its file."""
    rest = dict(facts)
    label = rest.pop("label", None)
    prediction = rest.pop("prediction", None)
    number = rest.pop("record")
    verdict = label if label == prediction else f"{label}, taken for {prediction}"
    sure = [f"{format_share(float(rest.pop('probability')))} sure"] if "probability" in rest else []
    texts = [
        f"{_words(name)} {each if isinstance(each, str) else format_number(each)}"
        for name, each in rest.items()
    ]
    return [str(verdict or ""), *sure, *texts, record.name, f"record {number:,}"]


def joined(parts: Sequence[EvaluatedRecords]) -> EvaluatedRecords:
    """The records of all calls of an evaluation's on_records, in order. There is at least one
    call."""
    numbered = [part.index for part in parts if part.index is not None]
    predictions = dict[str, np.ndarray]()
    for name in parts[0].predictions:
        predictions[name] = np.concatenate([part.predictions[name] for part in parts])
    return EvaluatedRecords(
        index=np.concatenate(numbered) if numbered else None,
        loss=np.concatenate([part.loss for part in parts]),
        predictions=predictions,
    )


def worst(scores: np.ndarray, most: int, among: np.ndarray | None = None) -> np.ndarray:
    """The places of the largest scores, largest first, then by place; a NaN is the largest of all.

    among: bool, the places that may be chosen. Default: all."""
    places = np.arange(len(scores)) if among is None else np.flatnonzero(among)
    chosen = scores[places].astype(np.float64)
    order = np.argsort(-np.where(np.isnan(chosen), np.inf, chosen), kind="stable")
    return places[order[:most]]
