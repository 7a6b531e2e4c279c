"""What the dispatches of an evaluation add up to."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainer.inputs import INDEX, MASK, Input
from trainer.loop.dispatching import DispatchResult
from trainer.metrics.tally import LOSSES
from trainer.modes.exact_epoch import ExactEpoch
from trainer.results import EvaluatedRecords
from trainer.step_functions import PREDICTIONS, PROOF_SUMS, ROWS

__all__ = ["EpochTotals", "OnCounted", "OnRecords"]

OnRecords = Callable[[EvaluatedRecords], None]
OnCounted = Callable[[int], None]
"""Gets the number of records, over all hosts, that a dispatch counted."""


class EpochTotals:
    """Adds up the masked sums of all steps in float64 and int: the sum over a million records stays exact.

    on_records: gets the records of each dispatch, if its program returns them."""

    def __init__(self, source: Input, on_records: OnRecords | None, on_counted: OnCounted) -> None:
        self.sums, self.steps, self.epoch = defaultdict[str, float](float), 0, ExactEpoch(source)
        self._on_records, self._on_counted = on_records, on_counted

    def add(self, result: DispatchResult) -> None:
        """Adds those of a dispatch."""
        self.steps += result.length
        before = self.epoch.records
        self.epoch.add(result.scalars)
        rows = result.scalars.pop(ROWS, None)
        if self._on_records and rows:
            self._on_records(_counted(rows))
        for name, values in result.scalars.items():
            if name not in PROOF_SUMS:
                self.sums[name] += float(values.sum(dtype=np.float64))
        self._on_counted(self.epoch.records - before)


def _counted(rows: Mapping[str, Any]) -> EvaluatedRecords:
    """The rows [steps, b] of a dispatch that count."""
    counts = rows[MASK] > 0
    index = rows.get(INDEX)
    predictions = {name: values[counts] for name, values in rows[PREDICTIONS].items()}
    return EvaluatedRecords(None if index is None else index[counts], rows[LOSSES][counts], predictions)
