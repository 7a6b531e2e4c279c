"""One exact epoch, and the proof that it was one; more of them to prove that padding has no part in it."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from pipeline.shards.errors import EvaluationError
from trainer.calls.call import Call
from trainer.inputs import Input, on_error_of
from trainer.job import Job, Opened
from trainer.loop.plan import Steps
from trainer.loop.run import Look, run
from trainer.metrics.masking import PADDINGS
from trainer.results import EvalResult
from trainer.steps import BAD_ROWS, CRC_SUM, RECORDS, EvalState, eval_step
from trainer.task import Variables

__all__ = ["Evaluation", "compare_paddings"]

log = logging.getLogger("trainer")


class Evaluation:
    """Exact epochs with one model, all by one program. It uses up the arrays of `variables`.

    padding_rows: rows of the last epoch that did not count, over all hosts."""

    def __init__(self, call: Call, job: Job, opened: Opened, variables: Variables, step: int) -> None:
        self._call, self._job, self._opened, self._step = call, job, opened, step
        self.padding_rows = 0
        epoch = opened.source.steps_per_epoch
        k = job.steps_a_dispatch(opened, [epoch] if epoch else [])
        self._steps = Steps.of_input() if epoch is None else Steps.planned(0, epoch, k)
        self._state = EvalState(variables, job.placement.scalar(np.int32(0)))
        self._program = job.program(eval_step(job.task), self._state, opened, k)

    @property
    def variables(self) -> Variables:
        """The model, in the arrays that are there after an epoch."""
        return self._state.variables

    def renew(self, call: Call, variables: Variables, step: int) -> None:
        """Goes on with another model of the same shapes, by the same program."""
        self._call, self._step = call, step
        self._state = self._state._replace(variables=variables)

    def epoch(self, padding: int = 0, source: Input | None = None) -> EvalResult:
        """Runs the whole input once, with PADDINGS[padding] in rows that do not count.

        source: the same input, opened anew. EvaluationError unless every record counted exactly once, or was left
        out as bad."""
        opened = self._opened if source is None else replace(self._opened, source=source)
        state = self._state._replace(padding=self._job.placement.scalar(np.int32(padding)))
        totals = _Totals(opened.source)
        with self._job.feeding(self._program, opened, opened.source.start, self._steps, self._call.check) as feeder:
            started = time.perf_counter()
            self._state, _ = run(state, 0, feeder, self._program, totals.add, self._call)
        totals.check()
        if totals.masked:
            log.warning("evaluation: %d bad records are left out, the means are over %d", totals.masked, totals.records)
        self.padding_rows = totals.steps * opened.global_batch - totals.records
        return totals.result(self._step, time.perf_counter() - started)


def compare_paddings(evaluation: Evaluation, first: EvalResult, again: Callable[[], Input | None]) -> None:
    """Runs the epoch again with every other kind of padding; `again` opens the input anew, where it must be.

    EvaluationError, naming a metric and both values, unless each has the bits of the `first` epoch, over zeros."""
    if not evaluation.padding_rows:
        log.warning(
            "check_padding: the epoch has no row of padding, so nothing was checked. Take another eval_batch_size, one "
            "that does not divide %d.",
            first.records,
        )
        return
    for padding in range(1, len(PADDINGS)):
        found = evaluation.epoch(padding, again()).metrics
        changed = _changed(first.metrics, found)
        if not changed:
            continue
        # Where nothing is changed the bits may differ, too: some GPU kernels add up in any order.
        if by_itself := _changed(first.metrics, evaluation.epoch(0, again()).metrics):
            raise EvaluationError(
                f"check_padding: two epochs over the same padding differ, too: {by_itself}. This program is not "
                "deterministic on these devices. Try again with XLA_FLAGS=--xla_gpu_deterministic_ops=true."
            )
        raise EvaluationError(
            f"check_padding: with {PADDINGS[padding]} in place of {PADDINGS[0]} in rows of padding, {changed}. Some "
            "computation mixes the rows of a batch, so padding reaches rows that count. Leave it out there by "
            "jnp.where(mask, x, 0), with mask = batch['_mask'] > 0 in the shape of x; x * mask lets NaN through."
        )
    log.info(
        "check_padding: all metrics have the same bits whatever the %d rows of padding hold: %s",
        evaluation.padding_rows,
        "; ".join(PADDINGS),
    )


def _changed(first: Mapping[str, float], second: Mapping[str, float]) -> str:
    """The metrics whose bits are not the same; "" where all are."""
    return ", ".join(
        f"{name} is {second[name]!r} and not {value!r}"
        for name, value in first.items()
        if value.hex() != second[name].hex()
    )


class _Totals:
    """Adds up the masked sums of every step, outside float32: the sum over a million records stays exact."""

    def __init__(self, source: Input) -> None:
        self.sums: dict[str, float] = {}
        self.records = self.crc = self.steps = self._bad = 0
        self._source = source

    @property
    def masked(self) -> int:
        """Bad records. What an input masks that has not said it would is missing."""
        return self._bad if on_error_of(self._source) == "mask" else 0

    def add(self, look: Look) -> None:
        self.steps += look.length
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
