"""The proof of an exact epoch: every record that is due was delivered once. Evaluation and
prediction use it.

NumPy only: the device computes the sums of each step."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.errors import EvaluationError
from pipeline.logs import logger
from pipeline.sizes import counted
from pipeline.spec import with_offsets
from trainer.inputs import INDEX, LABELLED, MASK, Input
from trainer.loop.dispatching import DispatchResult
from trainer.metrics.labels import REMEDY, told_outside
from trainer.metrics.tally import LOSSES
from trainer.results import EvaluatedRecords
from trainer.step.steps import (
    BAD_ROWS,
    CRC_SUM,
    PREDICTIONS,
    PROOF_SUMS,
    RECORD_OUTSIDE,
    RECORDS,
    ROWS,
    UNSEEN,
)
from trainer.task import Task

log = logger("trainer")

OnRecords = Callable[[EvaluatedRecords], None]
OnCounted = Callable[[int], None]
"""Gets the number of records, over all hosts, that a dispatch counted."""


class ExactEpoch:
    """name: of the data. records: rows that counted. labelled: those that have a label. unseen:
    values of categories that the model has never seen. crc: the sum of the records' crcs mod 2**32,
    plus the expected crcs of masked records."""

    def __init__(self, source: Input) -> None:
        self.records = self.labelled = self.crc = self.unseen = self._bad = 0
        self._source = source
        self.name = source.info.name or "the input"

    @property
    def masked(self) -> int:
        """Masked bad records. Records masked by an input without on_error="mask" count as
        missing."""
        return self._bad if self._source.info.on_error == "mask" else 0

    def add(self, sums: Mapping[str, np.ndarray]) -> None:
        """Adds the PROOF_SUMS of one step or several, as integers, so exactly."""
        self.records += int(sums[RECORDS].sum(dtype=np.int64))
        self.labelled += int(sums[LABELLED].sum(dtype=np.int64))
        self._bad += int(sums[BAD_ROWS].sum(dtype=np.int64))
        self.unseen += int(np.sum(sums.get(UNSEEN, 0), dtype=np.int64))
        self.crc = (self.crc + int(sums[CRC_SUM].sum(dtype=np.uint64))) % 2**32

    def check(self, call: str, so: str) -> None:
        """EvaluationError unless everything that is due was added. `so`: the consequence for the
        result of `call`."""
        due = self._source.info.num_records
        expected_crc = self._source.info.expected_crc
        left_out = f" and left out {self.masked} as bad" if self.masked else ""
        if due is not None and self.records + self.masked != due:
            raise EvaluationError(
                f"the {call} counted {self.records} records{left_out}; the split has {due}. The "
                f"input delivered a record twice or not at all, or its _mask is wrong; {so}. "
                f"{self._next_step}"
            )
        if expected_crc is not None and self.crc != expected_crc:
            raise EvaluationError(
                f"the {call} counted {self.records} records{left_out} as due, but their crcs add "
                f"up to {self.crc:08x} and not to the index's {expected_crc:08x}. Some record was "
                f"delivered in place of another; {so}. {self._next_step}"
            )
        if self.unseen:
            log.warning(
                "%s: categories that the model has never seen count as missing (%s)",
                call,
                counted(self.unseen, "value"),
            )
        if self.records == 0:
            raise EvaluationError(
                f"no row of the input has a _mask above 0{' (all are bad)' * bool(left_out)}, so "
                f"the {call} has nothing to count. {self._next_step}"
            )

    def check_totals(self, by_metric: Mapping[str, Mapping[str, int]], so: str) -> None:
        """EvaluationError unless each metric's totals are those that the dataset states.

        Not checked if bad records were masked, because the dataset's totals include them. `so`: as
        in check."""
        if self.masked:
            return
        for metric, totals in by_metric.items():
            for name, total in totals.items():
                due = self._source.info.totals.get(name)
                if due is not None and total != due:
                    raise EvaluationError(
                        f"the metric {metric!r} added up {name}={total}; the dataset states {due}. "
                        "The metric left something out or counted it twice, or the input changed "
                        f"the records; {so}. Check the batches and what the metric counts, or give "
                        "it total=None if it counts something else."
                    )

    @property
    def _next_step(self) -> str:
        step = (
            "Check the input's batches: in an epoch each record must come once, with its number in "
            "_index and a _mask above 0. For converted shards, infeed verify DIR --decode lists "
            "damaged records."
        )
        if command := self._source.info.verify_command:
            step = (
                f"To see damaged records: {command}. If it finds none, check what is between "
                "eval_dataset and the trainer: a wrapper, or an input or source of your own."
            )
        return f"{step} The proof is described in ARCHITECTURE.md, How an evaluation is proven."


@dataclass
class EpochTotals:
    """Adds up the masked sums of all steps in float64 and int: the sum over a million records stays
    exact.

    on_records: gets the records of each dispatch, if its program returns them."""

    source: Input
    task: Task
    on_records: OnRecords | None
    on_counted: OnCounted

    def __post_init__(self) -> None:
        self.sums = defaultdict[str, float](float)
        self.steps = 0
        self.epoch = ExactEpoch(self.source)
        self._outside = -1

    def add(self, result: DispatchResult) -> None:
        """Adds those of a dispatch."""
        self.steps += result.length
        before = self.epoch.records
        self.epoch.add(result.scalars)
        rows = result.scalars.pop(ROWS, None)
        if self.on_records and rows:
            counts = rows[MASK] > 0
            index = rows.get(INDEX)
            predictions = {name: values[counts] for name, values in rows[PREDICTIONS].items()}
            numbers = None if index is None else index[counts]
            predictions = with_offsets(predictions, self.task.added)
            self.on_records(EvaluatedRecords(numbers, rows[LOSSES][counts], predictions))
        self._outside = max(self._outside, int(result.scalars.pop(RECORD_OUTSIDE).max()))
        for name, values in result.scalars.items():
            if name not in PROOF_SUMS:
                self.sums[name] += float(values.sum(dtype=np.float64))
        self.on_counted(self.epoch.records - before)

    def check(self, so: str) -> None:
        """EvaluationError unless everything that is due was added, some of it has a label, and all
        labels are among the classes. `so`: as in ExactEpoch.check."""
        self.epoch.check("evaluation", so)
        if outside := told_outside(self.sums):
            such = f", such as record {self._outside}" if self._outside >= 0 else ""
            raise EvaluationError(f"the evaluation counted {outside}{such}; {so}. {REMEDY}.")
        if (target := self.task.target) and not self.epoch.labelled:
            raise EvaluationError(
                f"{self.epoch.name}: none of the {self.epoch.records} records has the label "
                f"{target.key!r}, so nothing can be evaluated. --mode predict (Trainer.predict) "
                "works without labels."
            )
