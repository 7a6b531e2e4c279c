"""Labels and predicted classes of an evaluation's records: counts, shares and confusions, as blocks of a page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.describing.labels import MOST_NAME, shortened
from pipeline.pages.page import Block, Cell, Matrix, Table
from pipeline.shards.schema import Labels

MATRIX_CLASSES, TABLE_CLASSES, PAIRS = 25, 1_000, 20
OTHERS_NOTE = (
    "The {} of {} classes with the most mistakes, and all others together. Records whose label and prediction are both "
    "among the others are left out."
)
TABLE_NOTE = (
    "Recall: share of the class's records that were predicted as such. Precision: share of the records predicted as "
    "the class that belong to it. F1: their harmonic mean, lowest first. A cell is empty if the class has no records, "
    "or was never predicted."
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
        found = (self.label, self.predicted, self.label[~self.wrong])
        of_label, of_predicted, hits = (np.bincount(places, minlength=len(self.names)) for places in found)
        return of_label, of_predicted, hits

    def blocks(self) -> Iterator[Block]:
        """The confusion matrix, the table of the classes, and the pairs that are most often confused."""
        yield self._matrix()
        yield self._table()
        if self.wrong.any():
            yield self._pairs()

    def confusion(self, classes: np.ndarray) -> np.ndarray:
        """int64 [k + 1, k + 1]: records by label and prediction; the last row and column are all other classes."""
        k = len(classes)
        place = np.full(len(self.names), k)
        place[classes] = np.arange(k)
        codes = place[self.label] * (k + 1) + place[self.predicted]
        return np.bincount(codes, minlength=(k + 1) ** 2).reshape(k + 1, k + 1)

    def _matrix(self) -> Matrix:
        classes, note, others = np.arange(len(self.names)), "", list[str]()
        if len(classes) > MATRIX_CLASSES:
            of_label, of_predicted, hits = self.counts
            mistakes = of_label + of_predicted - 2 * hits
            classes = np.sort(np.argsort(-mistakes, kind="stable")[:MATRIX_CLASSES])
            note, others = OTHERS_NOTE.format(MATRIX_CLASSES, f"{len(self.names):,}"), ["others"]
        names = [*(self.names[place] for place in classes.tolist()), *others]
        counts = self.confusion(classes)
        counts[-1, -1] = 0  # right or wrong
        shown = counts[: len(names), : len(names)].tolist()
        return Matrix(names, shown, "label", "prediction", title="Confusion matrix", note=note)

    def _table(self) -> Table:
        of_label, of_predicted, hits = self.counts
        with np.errstate(all="ignore"):  # a class without records has no recall
            recall, precision = hits / of_label, hits / of_predicted
            f1 = 2 * hits / (of_label + of_predicted)
            loss = np.bincount(self.label, self.loss, len(self.names)) / of_label
        shares = [_percent(share) for share in (recall, precision, f1)]
        losses = [mean if count else None for mean, count in zip(loss.tolist(), of_label.tolist(), strict=True)]
        order = np.argsort(f1, kind="stable")[:TABLE_CLASSES].tolist()
        rows: list[list[Cell]] = [
            [self.names[at], int(of_label[at]), *(share[at] for share in shares), losses[at]] for at in order
        ]
        columns = ("class", "records", "recall, %", "precision, %", "F1, %", "mean loss")
        note = TABLE_NOTE
        if len(self.names) > TABLE_CLASSES:
            note += f" The first {TABLE_CLASSES:,} of {len(self.names):,}."
        return Table(columns, rows, title="Classes", note=note)

    def _pairs(self) -> Table:
        of_label, *_ = self.counts
        codes = self.label[self.wrong] * len(self.names) + self.predicted[self.wrong]
        pairs, counts = np.unique(codes, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:PAIRS]
        rows: list[list[Cell]] = []
        for pair, count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True):
            label, predicted = divmod(pair, len(self.names))
            rows.append([self.names[label], self.names[predicted], count, 100 * count / int(of_label[label])])
        columns = ("label", "prediction", "records", "of the label's, %")
        return Table(columns, rows, title="Most often confused")


def find_classes(
    loss: np.ndarray, predictions: Mapping[str, np.ndarray], class_names: Labels | None, label_names: Labels | None
) -> Classes | None:
    """The classes of an evaluation; None unless the task predicts `class` and `label`, each one integer per record.

    class_names, label_names: of the model and of the data, which may number the classes from different bases."""
    found = [predictions.get(name) for name in ("class", "label")]
    if any(values is None or values.dtype.kind not in "iu" for values in found):
        return None
    class_names = class_names or label_names
    label_names = label_names or class_names
    bases = [names.base if names else 0 for names in (class_names, label_names)]
    places = [values.astype(np.int64) - base for values, base in zip(found, bases, strict=True) if values is not None]
    numbers, inverse = np.unique(np.concatenate(places), return_inverse=True)
    predicted, label = np.split(inverse, 2)
    named = [(number, class_names and class_names.name_of(number)) for number in (numbers + bases[0]).tolist()]
    names = tuple(str(number) if name is None else shortened(name, MOST_NAME) for number, name in named)
    return Classes(names, label, predicted, loss.astype(np.float64))


def _percent(shares: np.ndarray) -> list[float | None]:
    return [100 * share if np.isfinite(share) else None for share in shares.tolist()]
