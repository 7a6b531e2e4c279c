"""One exact epoch, and the proof that it was one."""

import logging
import time
from dataclasses import dataclass

import numpy as np

from pipeline.shards.errors import EvaluationError
from trainer.inputs import Input, on_error_of
from trainer.job import Job, Opened
from trainer.loop import Look, plan, run
from trainer.steps import BAD_ROWS, CRC_SUM, RECORDS, eval_step
from trainer.task import Variables

__all__ = ["EvalResult", "evaluate_epoch"]

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class EvalResult:
    """The metrics of one epoch, each a mean over its records.

    records: rows that counted. masked: bad records, over all hosts, that the input left out; the log of each host names
    its own. num_records: rows that were due; None for a plain iterable. crc, expected_crc: sums of the records' crcs
    mod 2**32, delivered (of a masked one: promised) and due."""

    step: int
    metrics: dict[str, float]
    records: int
    masked: int
    num_records: int | None
    crc: int
    expected_crc: int | None
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether the input could say what was due, and exactly that was delivered.

        With masked records it was not, though all others are accounted for: the means are not the split's own."""
        due = (self.num_records, self.expected_crc)
        return None not in due and due == (self.records, self.crc)


def evaluate_epoch(job: Job, opened: Opened, variables: Variables, step: int) -> EvalResult:
    """Runs the whole input once. EvaluationError unless every record counted exactly once, or was left out as bad."""
    epoch = opened.source.steps_per_epoch
    k = job.steps_a_dispatch(opened, [epoch] if epoch else [])
    lengths = None if epoch is None else list(plan(0, epoch, k))
    program = job.program(eval_step(job.task), variables, opened, k)
    totals = _Totals(opened.source)
    with job.feeding(program, opened, opened.source.start, 0, lengths) as feeder:
        started = time.perf_counter()
        run(variables, feeder, program, totals.add)
    totals.check()
    if totals.masked:
        log.warning("evaluation: %d bad records are left out, the means are over %d", totals.masked, totals.records)
    return totals.result(step, time.perf_counter() - started)


class _Totals:
    """Adds up the masked sums of every step, outside float32: the sum over a million records stays exact."""

    def __init__(self, source: Input) -> None:
        self.sums: dict[str, float] = {}
        self.records = self.crc = self._bad = 0
        self._source = source

    @property
    def masked(self) -> int:
        """Bad records. What an input masks that has not said it would is missing."""
        return self._bad if on_error_of(self._source) == "mask" else 0

    def add(self, look: Look) -> None:
        for name, values in look.scalars.items():
            if name == RECORDS:
                self.records += int(values.sum(dtype=np.int64))
            elif name == BAD_ROWS:
                self._bad += int(values.sum(dtype=np.int64))
            elif name == CRC_SUM:
                self.crc = (self.crc + int(values.sum(dtype=np.uint64))) % 2**32
            else:
                self.sums[name] = self.sums.get(name, 0.0) + float(values.sum(dtype=np.float64))

    def check(self) -> None:
        due, expected_crc = self._source.num_records, self._source.expected_crc
        left_out = f" and left out {self.masked} as bad" if self.masked else ""
        if due is not None and self.records + self.masked != due:
            raise EvaluationError(
                f"the evaluation counted {self.records} records{left_out}; the split has {due}. The input delivered a "
                "record twice or not at all, or its _mask is wrong; the metrics are not the split's."
            )
        if expected_crc is not None and self.crc != expected_crc:
            raise EvaluationError(
                f"the evaluation counted {self.records} records{left_out} as due, but their crcs add up to "
                f"{self.crc:08x} and the index says {expected_crc:08x}. Some record was delivered in place of another."
            )
        if self.records == 0:
            raise EvaluationError(
                f"no row of the input has a _mask above 0{' (all are bad)' * bool(left_out)}, so there is nothing to "
                "take a mean of."
            )

    def result(self, step: int, seconds: float) -> EvalResult:
        return EvalResult(
            step=step,
            metrics={name: total / self.records for name, total in self.sums.items()},
            records=self.records,
            masked=self.masked,
            num_records=self._source.num_records,
            crc=self.crc,
            expected_crc=self._source.expected_crc,
            seconds=seconds,
        )
