"""The page of an evaluation: metrics with their proof, the worst mistakes, classes and their
confusions, losses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.commands.dataset_texts import MOST_NAME, shortened
from pipeline.commands.shown_records import ShownRecord
from pipeline.pages.figures import histogram
from pipeline.pages.page import (
    Block,
    Cell,
    Figures,
    Matrix,
    Note,
    Page,
    Pictures,
    Section,
    Share,
    Table,
)
from pipeline.shards.schema import Labels
from pipeline.sizes import counted, format_number, format_seconds, format_share
from trainer.results import EvalResult, EvaluatedRecords

SHOWN, MOST_METRICS = 24, 100
OF_CLASSES = ("class", "label", "probability")
OF_RECORDS = ("text", "where")
FIRST = "Those with the largest losses first."
Told = str | int | float
NO_CLASSES = (
    "This page has no table of classes: it needs the predictions 'class' and 'label', each one "
    "integer per record."
)
MATRIX_CLASSES, TABLE_CLASSES, PAIRS = 25, 1_000, 20
OTHERS_NOTE = (
    "The {} of {} classes with the most mistakes, and all others together. Records whose label and "
    "prediction are both among the others are left out."
)
TABLE_NOTE = (
    "Recall: share of the class's records that were predicted as such. Precision: share of the "
    "records predicted as the class that belong to it. F1: their harmonic mean, lowest first. A "
    "cell is empty if the class has no records, or was never predicted."
)


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

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64 [c] each: records of a class, records taken for it, and those in both."""
        columns = (self.label, self.predicted, self.label[~self.wrong])
        of_label, of_predicted, hits = (
            np.bincount(places, minlength=len(self.names)) for places in columns
        )
        return of_label, of_predicted, hits

    def confusion(self, classes: np.ndarray) -> np.ndarray:
        """int64 [k + 1, k + 1]: records by label and prediction; the last row and column are all
        other classes."""
        k = len(classes)
        place = np.full(len(self.names), k)
        place[classes] = np.arange(k)
        codes = place[self.label] * (k + 1) + place[self.predicted]
        return np.bincount(codes, minlength=(k + 1) ** 2).reshape(k + 1, k + 1)

    def matrix(self) -> Matrix:
        """The confusion matrix, of the classes with the most mistakes if they are many."""
        classes = np.arange(len(self.names))
        note = ""
        others = list[str]()
        if len(classes) > MATRIX_CLASSES:
            of_label, of_predicted, hits = self.counts
            mistakes = of_label + of_predicted - 2 * hits
            classes = np.sort(np.argsort(-mistakes, kind="stable")[:MATRIX_CLASSES])
            note = OTHERS_NOTE.format(MATRIX_CLASSES, f"{len(self.names):,}")
            others = ["others"]
        names = [*(self.names[place] for place in classes.tolist()), *others]
        counts = self.confusion(classes)
        counts[-1, -1] = 0  # right or wrong
        shown = counts[: len(names), : len(names)].tolist()
        return Matrix(names, shown, "label", "prediction", note=note)

    def table(self) -> Table:
        """Recall, precision, F1 and mean loss of each class."""
        of_label, of_predicted, hits = self.counts
        with np.errstate(all="ignore"):  # a class without records has no recall
            recall = hits / of_label
            precision = hits / of_predicted
            f1 = 2 * hits / (of_label + of_predicted)
            loss = np.bincount(self.label, self.loss, len(self.names)) / of_label
        shares = [_shares(values) for values in (recall, precision, f1)]
        losses = [
            mean if count else None
            for mean, count in zip(loss.tolist(), of_label.tolist(), strict=True)
        ]
        order = np.argsort(f1, kind="stable")[:TABLE_CLASSES].tolist()
        rows: list[list[Cell]] = [
            [self.names[at], int(of_label[at]), *(share[at] for share in shares), losses[at]]
            for at in order
        ]
        columns = ("class", "records", "recall", "precision", "F1", "mean loss")
        note = TABLE_NOTE
        if len(self.names) > TABLE_CLASSES:
            note += f" The first {TABLE_CLASSES:,} of {len(self.names):,}."
        return Table(columns, rows, note=note)

    def pairs(self) -> Table:
        """The pairs that are most often confused."""
        of_label, *_ = self.counts
        codes = self.label[self.wrong] * len(self.names) + self.predicted[self.wrong]
        pairs, counts = np.unique(codes, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:PAIRS]
        rows: list[list[Cell]] = []
        for pair, count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True):
            label, predicted = divmod(pair, len(self.names))
            rows.append(
                [
                    self.names[label],
                    self.names[predicted],
                    count,
                    Share(count / int(of_label[label])),
                ]
            )
        return Table(
            ("label", "prediction", "records", "of the label's"), rows, title="Most often confused"
        )


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
    pairs = [predictions.get(name) for name in ("class", "label")]
    if any(values is None or values.dtype.kind not in "iu" for values in pairs):
        return None
    class_names = class_names or label_names
    label_names = label_names or class_names
    bases = [names.base if names else 0 for names in (class_names, label_names)]
    places = [
        values.astype(np.int64) - base
        for values, base in zip(pairs, bases, strict=True)
        if values is not None
    ]
    numbers, inverse = np.unique(np.concatenate(places), return_inverse=True)
    predicted, label = np.split(inverse, 2)
    named = [
        (number, class_names and class_names.name_of(number))
        for number in (numbers + bases[0]).tolist()
    ]
    names = tuple(
        str(number) if name is None else shortened(name, MOST_NAME) for number, name in named
    )
    return Classes(names, label, predicted, loss.astype(np.float64))


def _shares(values: np.ndarray) -> list[Share | None]:
    return [Share(value) if np.isfinite(value) else None for value in values.tolist()]


@dataclass(frozen=True)
class About:
    """What the page says of the evaluation besides its result.

    facts: by name, in the table of the proof. class_names, label_names: see find_classes. show: the
    records with some numbers; None if they cannot be read by number. made_by: see Page."""

    recipe: str
    facts: Mapping[str, str] = field(default_factory=dict)
    class_names: Labels | None = None
    label_names: Labels | None = None
    show: Callable[[Sequence[int]], Sequence[ShownRecord]] | None = None
    made_by: str = ""


def evaluation_page(result: EvalResult, records: EvaluatedRecords, about: About) -> Page:
    """The page of this result, with what the same evaluation passed to on_records. Its first three
    parts are open."""
    classes = find_classes(records.loss, records.predictions, about.class_names, about.label_names)
    listed = _Records(records, classes, about)
    wrong = classes.wrong | ~np.isfinite(records.loss) if classes and classes.wrong.any() else None
    note = FIRST if wrong is not None or not classes else f"Every prediction is right. {FIRST}"
    sections = [
        Section("", [_figures(result, classes), *_reasons(result)]),
        Section(
            "Worst records" if wrong is None else "Worst mistakes",
            [Note(note), listed.block(worst(records.loss, SHOWN, wrong))],
        ),
    ]
    if classes:
        confused = [classes.pairs()] if classes.wrong.any() else []
        sections += [
            Section("Confusion matrix", [classes.matrix()]),
            Section("Classes", [classes.table(), *confused], folded=True),
        ]
    losses = [
        histogram("Loss of each record", records.loss, ""),
        *[Note(NO_CLASSES)] * (not classes),
    ]
    sections.append(Section("Losses", losses, folded=True))
    sections.append(
        Section(
            "All metrics and their proof", [_metrics(result), _proof(result, about)], folded=True
        )
    )
    return Page(
        f"{about.recipe}: evaluation of step {result.step:,}",
        _lead(result, about),
        sections,
        about.made_by,
    )


def _lead(result: EvalResult, about: About) -> str:
    places = [about.facts.get(name) for name in ("split", "data", "checkpoint")]
    place = " of ".join(filter(None, places[:2]))
    return ", ".join(
        filter(
            None,
            [
                place,
                places[2] and f"checkpoint {places[2]}",
                f"took {format_seconds(result.seconds)}",
            ],
        )
    )


def _figures(result: EvalResult, classes: Classes | None) -> Figures:
    """The first metric with the number of mistakes, the second one, and how many records
    counted."""
    first, *others = sorted(result.metrics, key=lambda name: (name != "accuracy", name == "loss"))
    wrong = (
        f"{counted(int(classes.wrong.sum()), 'mistake')} in {len(classes.wrong):,} records"
        if classes
        else ""
    )
    items = [(_number(first, result.metrics[first]), _words(first), wrong)]
    if others:
        name = "loss" if "loss" in others else others[0]
        items.append((_number(name, result.metrics[name]), _words(name), ""))
    due = "" if result.num_records is None else f" of {result.num_records:,}"
    labelled = f"; {result.labelled:,} have a label" if result.labelled != result.records else ""
    return Figures(
        [*items, (f"{result.records:,}{due}", f"records counted{labelled}", _verdict(result))]
    )


def _reasons(result: EvalResult) -> list[Note]:
    return [
        Note(f"{_words(name)} is {why}.", warning=True) for name, why in result.not_finite.items()
    ]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(name: str, value: float) -> str:
    return format_share(value) if "accuracy" in name else format_number(value)


def _verdict(result: EvalResult) -> str:
    if result.proven:
        return "proven: every record that was due counted exactly once"
    if result.masked:
        return (
            f"not proven: {counted(result.masked, 'bad record')} "
            f"{'were' if result.masked > 1 else 'was'} left out"
        )
    return "not proven: the input does not state which records are due"


def _metrics(result: EvalResult) -> Table:
    metrics = list(result.metrics.items())
    rows: list[list[Cell]] = [
        [_words(name), Share(value) if "accuracy" in name else value]
        for name, value in metrics[:MOST_METRICS]
    ]
    rows += [[_words(name), total] for name, total in result.totals.items()]
    note = f"The first {MOST_METRICS} of {len(metrics):,}." if len(metrics) > MOST_METRICS else ""
    return Table(("metric", "value"), rows, title="Metrics", note=note)


def _proof(result: EvalResult, about: About) -> Table:
    known: dict[str, Any] = {
        "verdict": _verdict(result),
        "records that counted": f"{result.records:,}",
        "records with a label": f"{result.labelled:,}",
        "records due": "unknown" if result.num_records is None else f"{result.num_records:,}",
        "bad records left out": f"{result.masked:,}",
        "sum of checksums": f"{result.crc:08x}",
        "expected sum": "unknown" if result.expected_crc is None else f"{result.expected_crc:08x}",
        "step": f"{result.step:,}",
        **about.facts,
        "time": format_seconds(result.seconds),
    }
    note = "The checksums are those of the records as stored, added up modulo 2**32."
    return Table(("fact", "value"), list(known.items()), title="Proof", note=note)


class _Records:
    """Makes blocks of some of the records: a grid of pictures, or a table if they have none."""

    def __init__(self, records: EvaluatedRecords, classes: Classes | None, about: About) -> None:
        self._records = records
        self._classes = classes
        self._show = about.show

    def block(self, places: np.ndarray) -> Block:
        """The records at these places."""
        index = self._records.index
        shown: Sequence[ShownRecord | None] = [None] * len(places)
        if index is not None and self._show:
            shown = self._show(index[places].tolist())
        rows = list(zip(map(self._told, places.tolist()), shown, strict=True))
        items = [
            (record.pictures[0], _caption(facts, record))
            for facts, record in rows
            if record and record.pictures
        ]
        return Pictures(items) if items else _table(rows)

    def _told(self, at: int) -> dict[str, Told]:
        """What the evaluation knows of a record, by name."""
        index = self._records.index
        classes = self._classes
        facts = dict[str, Told]()
        if index is not None:
            facts["record"] = int(index[at])
        facts["loss"] = float(self._records.loss[at])
        if classes:
            label = classes.names[classes.label[at]]
            predicted = classes.names[classes.predicted[at]]
            facts |= {"label": label, "prediction": predicted}
        others = {name: values[at].item() for name, values in self._records.predictions.items()}
        if "probability" in others:
            facts["probability"] = Share(others["probability"])
        rest = {name: value for name, value in others.items() if name not in OF_CLASSES}
        taken = {*facts, *OF_RECORDS}
        return facts | {
            f"predicted {name}" if name in taken else name: value for name, value in rest.items()
        }


def _caption(facts: Mapping[str, Told], record: ShownRecord) -> list[str]:
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


def _table(rows: Sequence[tuple[Mapping[str, Told], ShownRecord | None]]) -> Table:
    """The records in a table, with their texts and where they are, if these are known."""
    cells = [
        [
            *facts.values(),
            *((record.problem or " ".join(record.texts), record.where) if record else ("", "")),
        ]
        for facts, record in rows
    ]
    return Table([*map(_words, rows[0][0]), *OF_RECORDS], cells).without_empty_columns()


def joined(parts: Sequence[EvaluatedRecords]) -> EvaluatedRecords:
    """The records of all calls of an evaluation's on_records, in order. There is at least one
    call."""
    numbered = [part.index for part in parts if part.index is not None]
    names = parts[0].predictions
    return EvaluatedRecords(
        index=np.concatenate(numbered) if numbered else None,
        loss=np.concatenate([part.loss for part in parts]),
        predictions={
            name: np.concatenate([part.predictions[name] for part in parts]) for name in names
        },
    )


def worst(scores: np.ndarray, most: int, among: np.ndarray | None = None) -> np.ndarray:
    """The places of the largest scores, largest first, then by place; a NaN is the largest of all.

    among: bool, the places that may be chosen. Default: all."""
    places = np.arange(len(scores)) if among is None else np.flatnonzero(among)
    chosen = scores[places].astype(np.float64)
    order = np.argsort(-np.where(np.isnan(chosen), np.inf, chosen), kind="stable")
    return places[order[:most]]
