"""Collects the losses and predictions of an evaluation's records, about 20 bytes per record, and finds the worst."""

import numpy as np

from trainer.results import EvaluatedRecords

__all__ = ["Collected", "worst"]


class Collected:
    """All records of an evaluation, from the calls of its on_records."""

    def __init__(self) -> None:
        self._parts: list[EvaluatedRecords] = []

    def add(self, records: EvaluatedRecords) -> None:
        """Keeps the records of a dispatch."""
        self._parts.append(records)

    def all(self) -> EvaluatedRecords:
        """The records of all calls, in order. There is at least one."""
        parts = self._parts
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
