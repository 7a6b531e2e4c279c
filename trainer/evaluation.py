"""One exact epoch, and the proof that it was one."""

import time
from dataclasses import dataclass

import numpy as np

from pipeline.shards.errors import EvaluationError
from trainer.inputs import Input
from trainer.job import Job, Opened
from trainer.loop import Look, plan, run
from trainer.steps import CRC_SUM, RECORDS, eval_step
from trainer.task import Variables

__all__ = ["EvalResult", "evaluate_epoch"]


@dataclass(frozen=True)
class EvalResult:
    """The metrics of one epoch, each a mean over its records.

    records: rows that counted. num_records: rows that were due; None for a plain iterable. crc, expected_crc: sums of
    the records' crcs mod 2**32, delivered and due."""

    step: int
    metrics: dict[str, float]
    records: int
    num_records: int | None
    crc: int
    expected_crc: int | None
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether the input could say what was due, and exactly that was delivered."""
        due = (self.num_records, self.expected_crc)
        return None not in due and due == (self.records, self.crc)


def evaluate_epoch(job: Job, opened: Opened, variables: Variables, step: int) -> EvalResult:
    """Runs the whole input once. EvaluationError unless every record counted exactly once."""
    epoch = opened.source.steps_per_epoch
    k = job.steps_a_dispatch(opened, [epoch] if epoch else [])
    lengths = None if epoch is None else list(plan(0, epoch, k))
    program = job.program(eval_step(job.task), variables, opened, k)
    totals = _Totals()
    with job.feeding(program, opened, opened.source.start, 0, lengths) as feeder:
        started = time.perf_counter()
        run(variables, feeder, program, totals.add)
    totals.check(opened.source)
    return totals.result(step, opened.source, time.perf_counter() - started)


class _Totals:
    """Adds up the masked sums of every step, outside float32: the sum over a million records stays exact."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.records = self.crc = 0

    def add(self, look: Look) -> None:
        for name, values in look.scalars.items():
            if name == RECORDS:
                self.records += int(values.sum(dtype=np.int64))
            elif name == CRC_SUM:
                self.crc = (self.crc + int(values.sum(dtype=np.uint64))) % 2**32
            else:
                self.sums[name] = self.sums.get(name, 0.0) + float(values.sum(dtype=np.float64))

    def check(self, source: Input) -> None:
        if source.num_records is not None and self.records != source.num_records:
            raise EvaluationError(
                f"the evaluation counted {self.records} records; the split has {source.num_records}. The input "
                "delivered a record twice or not at all, or its _mask is wrong; the metrics are not the split's."
            )
        if source.expected_crc is not None and self.crc != source.expected_crc:
            raise EvaluationError(
                f"the evaluation counted {self.records} records as due, but their crcs add up to {self.crc:08x} "
                f"and the index says {source.expected_crc:08x}. Some record was delivered in place of another."
            )
        if self.records == 0:
            raise EvaluationError("no row of the input has a _mask above 0, so there is nothing to take a mean of.")

    def result(self, step: int, source: Input, seconds: float) -> EvalResult:
        return EvalResult(
            step=step,
            metrics={name: total / self.records for name, total in self.sums.items()},
            records=self.records,
            num_records=source.num_records,
            crc=self.crc,
            expected_crc=source.expected_crc,
            seconds=seconds,
        )
