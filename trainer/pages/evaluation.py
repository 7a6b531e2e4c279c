"""The page of an evaluation: metrics with their proof, losses, classes and their confusions, the worst records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.describing.shown_records import ShownRecord
from pipeline.pages.charts import histogram
from pipeline.pages.page import Block, Cell, Note, Page, Pictures, Section, Table
from pipeline.shards.schema import Labels
from pipeline.sizes import counted, format_number
from trainer.pages.classes import Classes, find_classes
from trainer.results import EvalResult, EvaluatedRecords

SHOWN, MOST_METRICS = 24, 100
OF_CLASSES, PROBABILITY = ("class", "label", "probability"), "probability, %"
OF_RECORDS = ("text", "where")
Told = str | int | float
NO_CLASSES = (
    "This page has no table of classes: it needs the predictions 'class' and 'label', each one integer per record."
)


@dataclass(frozen=True)
class About:
    """What the page says of the evaluation besides its result.

    facts: by name, in the table of the proof. class_names, label_names: see find_classes. show: the records with some
    numbers; None if they cannot be read by number. made_by: see Page."""

    recipe: str
    facts: Mapping[str, str] = field(default_factory=dict)
    class_names: Labels | None = None
    label_names: Labels | None = None
    show: Callable[[Sequence[int]], Sequence[ShownRecord]] | None = None
    made_by: str = ""


def evaluation_page(result: EvalResult, records: EvaluatedRecords, about: About) -> Page:
    """The page of this result, with what the same evaluation passed to on_records."""
    classes = find_classes(records.loss, records.predictions, about.class_names, about.label_names)
    listed = _Records(records, classes, about)
    sections = [
        Section("Result", [_metrics(result), _proof(result, about)]),
        Section(
            "Losses", [histogram("Loss of each record", records.loss, "loss"), *[Note(NO_CLASSES)] * (not classes)]
        ),
        Section("Classes", [*classes.blocks()] if classes else []),
        Section("Worst records", [Note("The largest losses first."), listed.block(worst(records.loss, SHOWN))]),
    ]
    probability = records.predictions.get("probability")
    if classes and probability is not None and classes.wrong.any():
        places = worst(probability, SHOWN, classes.wrong)
        note = Note("Wrong predictions, those with the highest probability first.")
        sections.append(Section("Most confident mistakes", [note, listed.block(places)]))
    return Page(f"{about.recipe}: evaluation of step {result.step:,}", _lead(result), sections, about.made_by)


def _lead(result: EvalResult) -> str:
    due = f" of {result.num_records:,}" if result.num_records is not None else ""
    return f"{result.records:,}{due} records were evaluated; {_verdict(result)}."


def _verdict(result: EvalResult) -> str:
    if result.proven:
        return "proven: every record that was due counted exactly once"
    if result.masked:
        return f"not proven: {counted(result.masked, 'bad record')} {'were' if result.masked > 1 else 'was'} left out"
    return "not proven: the input does not state which records are due"


def _metrics(result: EvalResult) -> Table:
    metrics = list(result.metrics.items())
    rows: list[list[Cell]] = [
        [f"{name}, %", 100 * value] if "accuracy" in name else [name, value] for name, value in metrics[:MOST_METRICS]
    ]
    rows += [[name, total] for name, total in result.totals.items()]
    note = f"The first {MOST_METRICS} of {len(metrics):,}." if len(metrics) > MOST_METRICS else ""
    return Table(("metric", "value"), rows, title="Metrics", note=note)


def _proof(result: EvalResult, about: About) -> Table:
    known: dict[str, Any] = {
        "verdict": _verdict(result),
        "records that counted": f"{result.records:,}",
        "records due": "unknown" if result.num_records is None else f"{result.num_records:,}",
        "bad records left out": f"{result.masked:,}",
        "sum of checksums": f"{result.crc:08x}",
        "expected sum": "unknown" if result.expected_crc is None else f"{result.expected_crc:08x}",
        "step": f"{result.step:,}",
        **about.facts,
        "seconds": f"{result.seconds:.3g}",
    }
    note = "The checksums are those of the records as stored, added up modulo 2**32."
    return Table(("fact", "value"), list(known.items()), title="Proof", note=note)


class _Records:
    """Makes blocks of some of the records: a grid of pictures, or a table if they have none."""

    def __init__(self, records: EvaluatedRecords, classes: Classes | None, about: About) -> None:
        self._records, self._classes, self._show = records, classes, about.show

    def block(self, places: np.ndarray) -> Block:
        """The records at these places."""
        index = self._records.index
        shown: Sequence[ShownRecord | None] = [None] * len(places)
        if index is not None and self._show:
            shown = self._show(index[places].tolist())
        rows = list(zip(map(self._told, places.tolist()), shown, strict=True))
        items = [(record.pictures[0], _caption(told, record)) for told, record in rows if record and record.pictures]
        return Pictures(items) if items else _table(rows)

    def _told(self, at: int) -> dict[str, Told]:
        """What the evaluation knows of a record, by name."""
        index, classes, told = self._records.index, self._classes, dict[str, Told]()
        if index is not None:
            told["record"] = int(index[at])
        told["loss"] = float(self._records.loss[at])
        if classes:
            label, predicted = classes.names[classes.label[at]], classes.names[classes.predicted[at]]
            told |= {"label": label, "prediction": predicted}
        others = {name: values[at].item() for name, values in self._records.predictions.items()}
        if "probability" in others:
            told[PROBABILITY] = 100 * others["probability"]
        rest = {name: value for name, value in others.items() if name not in OF_CLASSES}
        taken = {*told, *OF_RECORDS}
        return told | {f"predicted {name}" if name in taken else name: value for name, value in rest.items()}


def _caption(told: Mapping[str, Told], record: ShownRecord) -> list[str]:
    """The lines below a picture."""
    rest, first = dict(told), ""
    probability = f"{rest.pop(PROBABILITY):.1f}%" if PROBABILITY in rest else ""
    if "label" in rest:
        label, prediction = rest.pop("label"), rest.pop("prediction")
        verdict = f"{label}" if label == prediction else f"{label}, taken for {prediction}"
        first = f"{verdict} ({probability})" if probability else verdict
    elif probability:
        first = f"probability {probability}"
    numbers = [f"{name} {value if isinstance(value, str) else format_number(value)}" for name, value in rest.items()]
    return [first, *numbers, record.name or record.where]


def _table(rows: Sequence[tuple[Mapping[str, Told], ShownRecord | None]]) -> Table:
    """The records in a table, with their texts and where they are, if these are known."""
    cells = [
        [*told.values(), *((record.problem or " ".join(record.texts), record.where) if record else ("", ""))]
        for told, record in rows
    ]
    return Table([*rows[0][0], *OF_RECORDS], cells).without_empty_columns()


def joined(parts: Sequence[EvaluatedRecords]) -> EvaluatedRecords:
    """The records of all calls of an evaluation's on_records, in order. There is at least one call."""
    numbered = [part.index for part in parts if part.index is not None]
    names = parts[0].predictions
    return EvaluatedRecords(
        index=np.concatenate(numbered) if numbered else None,
        loss=np.concatenate([part.loss for part in parts]),
        predictions={name: np.concatenate([part.predictions[name] for part in parts]) for name in names},
    )


def worst(scores: np.ndarray, most: int, among: np.ndarray | None = None) -> np.ndarray:
    """The places of the largest scores, largest first, then by place; a NaN is the largest of all.

    among: bool, the places that may be chosen. Default: all."""
    places = np.arange(len(scores)) if among is None else np.flatnonzero(among)
    chosen = scores[places].astype(np.float64)
    order = np.argsort(-np.where(np.isnan(chosen), np.inf, chosen), kind="stable")
    return places[order[:most]]
