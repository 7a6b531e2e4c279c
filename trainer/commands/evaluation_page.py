"""The page of an evaluation: metrics with their proof, the worst mistakes, classes and their
confusions, losses."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
from trainer.commands.report import metric_text
from trainer.results import EvalResult, EvaluatedRecords

SHOWN, MOST_METRICS = 24, 100
OF_CLASSES = ("class", "label")
OF_RECORDS = ("text", "where")
FIRST = "Those with the largest losses first."
Fact = str | int | float
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

    @property
    def mistakes(self) -> int:
        """The number of wrong predictions."""
        return int(self.wrong.sum())

    @cached_property
    def counts(self) -> list[np.ndarray]:
        """int64 [c] each: records of a class, records taken for it, and those in both."""
        columns = (self.label, self.predicted, self.label[~self.wrong])
        return [np.bincount(places, minlength=len(self.names)) for places in columns]

    def matrix(self) -> Matrix:
        """The confusion matrix, of the classes with the most mistakes if they are many."""
        of_label, of_predicted, hits = self.counts
        mistakes = of_label + of_predicted - 2 * hits
        classes = np.sort(np.argsort(-mistakes, kind="stable")[:MATRIX_CLASSES])
        names = [self.names[place] for place in classes.tolist()]
        note = ""
        if len(self.names) > MATRIX_CLASSES:
            note = OTHERS_NOTE.format(MATRIX_CLASSES, f"{len(self.names):,}")
            names.append("others")
        # The row of each class, and its column; all others share the last ones.
        place = np.full(len(self.names), len(classes))
        place[classes] = np.arange(len(classes))
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (place[self.label], place[self.predicted]), 1)
        if note:
            counts[-1, -1] = 0  # right or wrong
        return Matrix(names, counts.tolist(), "label", "prediction", note=note)

    def table(self) -> Table:
        """Recall, precision, F1 and mean loss of each class."""
        of_label, of_predicted, hits = self.counts
        with np.errstate(all="ignore"):  # a class without records has no recall
            recall = hits / of_label
            precision = hits / of_predicted
            f1 = 2 * hits / (of_label + of_predicted)
            loss = np.bincount(self.label, self.loss, len(self.names)) / of_label
        records = of_label.tolist()
        means = loss.tolist()
        losses = [mean if count else None for mean, count in zip(means, records, strict=True)]
        columns = (self.names, records, *map(_shares, (recall, precision, f1)), losses)
        rows = list(map(list, zip(*columns, strict=True)))
        titles = ("class", "records", "recall", "precision", "F1", "mean loss")
        note = TABLE_NOTE
        if len(rows) > TABLE_CLASSES:
            note += f" The first {TABLE_CLASSES:,} of {len(rows):,}."
        lowest = np.argsort(f1, kind="stable")[:TABLE_CLASSES].tolist()
        return Table(titles, [rows[at] for at in lowest], note=note)

    def pairs(self) -> Table:
        """The pairs that are most often confused."""
        of_label, *_ = self.counts
        labels, predictions = (
            places[self.wrong].tolist() for places in (self.label, self.predicted)
        )
        pairs = Counter(sorted(zip(labels, predictions, strict=True)))
        rows = [
            (self.names[label], self.names[predicted], count, Share(count / of_label[label]))
            for (label, predicted), count in pairs.most_common(PAIRS)
        ]
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
    reasons = [
        Note(f"{_words(name)} is {why}.", warning=True) for name, why in result.not_finite.items()
    ]
    if result.classes:
        reasons.append(Note(f"{result.classes.capitalize()}.", warning=True))
    sections = [
        Section("", [_figures(result, classes), *reasons]),
        _worst_records(records, classes, about),
    ]
    losses: list[Block] = [histogram("Loss of each record", records.loss, "")]
    if classes:
        tables = [classes.table()]
        if classes.mistakes:
            tables.append(classes.pairs())
        sections += [
            Section("Confusion matrix", [classes.matrix()]),
            Section("Classes", tables, folded=True),
        ]
    else:
        losses.append(Note(NO_CLASSES))
    metrics = [_metrics(result), _proof(result, about)]
    sections += [
        Section("Losses", losses, folded=True),
        Section("All metrics and their proof", metrics, folded=True),
    ]
    return Page(
        f"{about.recipe}: evaluation of step {result.step:,}",
        _lead(result, about),
        sections,
        about.made_by,
    )


def _lead(result: EvalResult, about: About) -> str:
    place = " of ".join(filter(None, map(about.facts.get, ("split", "data"))))
    checkpoint = about.facts.get("checkpoint")
    took = f"took {format_seconds(result.seconds)}"
    return ", ".join(filter(None, (place, checkpoint and f"checkpoint {checkpoint}", took)))


def _figures(result: EvalResult, classes: Classes | None) -> Figures:
    """The first metric with the number of mistakes, the second one, and how many records
    counted."""
    first, *others = sorted(result.metrics, key=lambda name: (name != "accuracy", name == "loss"))
    remark = ""
    if classes:
        remark = f"{counted(classes.mistakes, 'mistake')} in {len(classes.wrong):,} records"
    remarks = {first: remark, **dict.fromkeys(["loss"] if "loss" in others else others[:1], "")}
    items = [
        (metric_text(name, result.metrics[name]), _words(name), remark)
        for name, remark in remarks.items()
    ]
    due = "" if result.num_records is None else f" of {result.num_records:,}"
    labelled = f"; {result.labelled:,} have a label" if result.labelled != result.records else ""
    records = (f"{result.records:,}{due}", f"records counted{labelled}", _verdict(result))
    return Figures([*items, records])


def _words(name: str) -> str:
    return name.replace("_", " ")


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
    facts = {
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
    return Table(("fact", "value"), list(facts.items()), title="Proof", note=note)


def _worst_records(records: EvaluatedRecords, classes: Classes | None, about: About) -> Section:
    """The worst mistakes, or the worst records if there are none: a grid of pictures, or a table if
    they have none."""
    title, note, among = "Worst records", FIRST, None
    if classes and classes.mistakes:
        title = "Worst mistakes"
        among = classes.wrong | ~np.isfinite(records.loss)
    elif classes:
        note = f"Every prediction is right. {FIRST}"
    places = worst(records.loss, SHOWN, among)
    shown: Sequence[ShownRecord | None] = [None] * len(places)
    if records.index is not None and about.show:
        shown = about.show(records.index[places].tolist())
    facts = [_facts(records, classes, place) for place in places.tolist()]
    rows = list(zip(facts, shown, strict=True))
    items = [
        (record.pictures[0], _caption(facts, record))
        for facts, record in rows
        if record and record.pictures
    ]
    return Section(title, [Note(note), Pictures(items) if items else _table(rows)])


def _facts(records: EvaluatedRecords, classes: Classes | None, at: int) -> dict[str, Fact]:
    """What the evaluation knows of a record, by name."""
    facts = dict[str, Fact]()
    if records.index is not None:
        facts["record"] = int(records.index[at])
    facts["loss"] = float(records.loss[at])
    if classes:
        facts["label"] = classes.names[classes.label[at]]
        facts["prediction"] = classes.names[classes.predicted[at]]
    others = {
        name: values[at].item()
        for name, values in records.predictions.items()
        if name not in OF_CLASSES
    }
    if "probability" in others:
        facts["probability"] = Share(others.pop("probability"))
    taken = {*facts, *OF_RECORDS}
    for name, value in others.items():
        facts[f"predicted {name}" if name in taken else name] = value
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


def _table(rows: Sequence[tuple[Mapping[str, Fact], ShownRecord | None]]) -> Table:
    """The records in a table, with their texts and where they are, if these are known."""
    cells = list[list[Cell]]()
    for facts, record in rows:
        text = record.problem or " ".join(record.texts) if record else ""
        cells.append([*facts.values(), text, record.where if record else ""])
    return Table([*map(_words, rows[0][0]), *OF_RECORDS], cells).without_empty_columns()


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
