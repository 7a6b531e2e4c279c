"""Exact epochs, for evaluation and prediction: a step over all of an input, and the proof that
every record that is due was delivered once.

The device computes the sums of each step; they are added up here in NumPy."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import EvaluationError
from pipeline.logs import logger
from pipeline.sizes import counted
from trainer.inputs import LABELLED, Input
from trainer.loop.dispatching import Dispatches, DispatchResult, Steps
from trainer.loop.job import OpenedInput
from trainer.loop.session import Session
from trainer.step.steps import BAD_ROWS, CRC_SUM, RECORDS, UNSEEN
from trainer.task import Step

log = logger("trainer")


class ExactEpoch:
    """A step compiled for all of an input, and for any other with the same shapes and size.

    constants, gather: see Compiled. make_carry: makes what the first step gets; each epoch donates
    its own. wide: whether the rows that the step returns count towards the memory of a dispatch;
    those of a few bytes per record do not."""

    def __init__(
        self,
        session: Session,
        opened: OpenedInput,
        step: Step,
        constants: tuple[Any, ...],
        make_carry: Callable[[], Any],
        *,
        gather: bool = True,
        wide: bool = False,
    ) -> None:
        job = session.job
        epoch = opened.source.info.steps_per_epoch
        self._shapes = opened.struct, epoch
        self._make_carry = make_carry
        self.program = job.program(step, constants, make_carry(), opened, gather)
        out_bytes = self.program.rows_bytes() if wide else 0
        marks = [epoch] if epoch else []
        k = job.steps_per_dispatch(opened, session.superbatch_bytes, marks, out_bytes=out_bytes)
        self.program.lengthen(k)
        self._steps = Steps(0, epoch, k if epoch else 1)

    def fits(self, opened: OpenedInput) -> bool:
        """Whether this input can be read, too."""
        return self._shapes == (opened.struct, opened.source.info.steps_per_epoch)

    @contextmanager
    def dispatching(
        self,
        session: Session,
        opened: OpenedInput,
        constants: tuple[Any, ...],
        record: Callable[[DispatchResult], None],
    ) -> Iterator[Dispatches]:
        """The dispatches of an epoch, from its beginning. record: see Dispatches."""
        carry = self._make_carry()
        program = self.program
        start = opened.source.info.start
        with session.feeding(program, opened, start, self._steps) as feeder:
            yield Dispatches(carry, 0, feeder, program, record, session.activity, constants)


class Delivered(NamedTuple):
    """What an exact epoch delivered. records: rows that counted. labelled: those that have a label.
    masked: bad records that were left out. unseen: values of categories that the model has never
    seen. crc: the sum of the records' crcs mod 2**32, plus the expected crcs of masked records."""

    records: int
    labelled: int
    masked: int
    unseen: int
    crc: int


class Proof:
    """Adds up the sums of all steps in float64 and int, so that they stay exact over a million
    records, and compares them with what is due.

    name: of the data. sums: by name, so far."""

    def __init__(self, source: Input) -> None:
        self.sums = defaultdict[str, Any](int)
        self._info = source.info
        self.name = source.info.name or "the input"

    def add(self, sums: Mapping[str, np.ndarray]) -> int:
        """Adds those of one step or several. Returns how many records they counted."""
        before = self.sums[RECORDS]
        for name, values in sums.items():
            kind = np.float64 if values.dtype.kind == "f" else np.int64
            self.sums[name] += values.sum(dtype=kind).item()
        return self.sums[RECORDS] - before

    def delivered(self) -> Delivered:
        """What was delivered so far. Records masked by an input without on_error="mask" count as
        missing."""
        sums = self.sums
        masked = sums[BAD_ROWS] if self._info.on_error == "mask" else 0
        return Delivered(sums[RECORDS], sums[LABELLED], masked, sums[UNSEEN], sums[CRC_SUM] % 2**32)

    def check(self, call: str, so: str, left: str) -> Delivered:
        """EvaluationError unless everything that is due was added.

        so: the consequence for the result of `call`. left: what the log says of the records that
        count, where others were left out as bad."""
        delivered = self.delivered()
        records = delivered.records
        due = self._info.num_records
        expected_crc = self._info.expected_crc
        left_out = f" and left out {delivered.masked} as bad" if delivered.masked else ""
        if due is not None and records + delivered.masked != due:
            raise EvaluationError(
                f"the {call} counted {records} records{left_out}; the split has {due}. The "
                f"input delivered a record twice or not at all, or its _mask is wrong; {so}. "
                f"{self._next_step}"
            )
        if expected_crc is not None and delivered.crc != expected_crc:
            raise EvaluationError(
                f"the {call} counted {records} records{left_out} as due, but their crcs add "
                f"up to {delivered.crc:08x} and not to the index's {expected_crc:08x}. Some record "
                f"was delivered in place of another; {so}. {self._next_step}"
            )
        if delivered.unseen:
            log.warning(
                "%s: categories that the model has never seen count as missing (%s)",
                call,
                counted(delivered.unseen, "value"),
            )
        if records == 0:
            raise EvaluationError(
                f"no row of the input has a _mask above 0{' (all are bad)' * bool(left_out)}, so "
                f"the {call} has nothing to count. {self._next_step}"
            )
        if delivered.masked:
            bad = counted(delivered.masked, "bad record")
            log.warning("%s: left out %s%s %d", call, bad, left, records)
        return delivered

    def check_totals(self, by_metric: Mapping[str, Mapping[str, int]], so: str) -> None:
        """EvaluationError unless each metric's totals are those that the dataset states.

        Not checked if bad records were masked, because the dataset's totals include them. `so`: as
        in check."""
        if self.delivered().masked:
            return
        for metric, totals in by_metric.items():
            for name, total in totals.items():
                due = self._info.totals.get(name)
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
        if command := self._info.verify_command:
            step = (
                f"To see damaged records: {command}. If it finds none, check what is between "
                "eval_dataset and the trainer: a wrapper, or an input or source of your own."
            )
        return f"{step} The proof is described in ARCHITECTURE.md, How an evaluation is proven."
