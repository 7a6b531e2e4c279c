"""Exact epochs, for evaluation and prediction: a step over all of an input, and the proof that
every record that is due was delivered once.

The device computes the sums of each step; they are added up here in NumPy."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from pipeline.epoch import check_counts
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

    It keeps no arrays of the model. constants, gather: see Compiled. make_carry: makes what the
    first step gets; each epoch donates its own."""

    def __init__(
        self,
        session: Session,
        opened: OpenedInput,
        step: Step,
        constants: tuple[Any, ...],
        make_carry: Callable[[], Any],
        gather: bool = True,
    ) -> None:
        job = session.job
        epoch = opened.source.info.steps_per_epoch
        self._shapes = opened.struct, epoch
        self._make_carry = make_carry
        self.program = job.program(step, constants, make_carry(), opened, gather)
        marks = [epoch] if epoch else []
        out_bytes = self.program.rows_bytes()
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
    """What an exact epoch delivered. labelled: the records that have a label. unseen: values of
    categories that the model has never seen. Others: see Counted."""

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

    def check(self, call: str, so: str, left: str) -> Delivered:
        """EvaluationError unless everything that is due was added: see check_counts.

        left: what the log says of the records that count, where others were left out as bad."""
        sums = self.sums
        counts = [sums[name] for name in (RECORDS, BAD_ROWS, CRC_SUM)]
        epoch = check_counts(self._info, counts, call, so)
        if sums[UNSEEN]:
            log.warning(
                "%s: categories that the model has never seen count as missing (%s)",
                call,
                counted(sums[UNSEEN], "value"),
            )
        if masked := epoch.masked:
            bad = counted(masked, "bad record")
            log.warning("%s: left out %s%s %d", call, bad, left, epoch.records)
        return Delivered(epoch.records, sums[LABELLED], masked, sums[UNSEEN], epoch.crc)

    def check_totals(self, by_metric: Mapping[str, Mapping[str, int]], so: str) -> None:
        """EvaluationError unless each metric's totals are those that the dataset states.

        Not checked if bad records were masked, because the dataset's totals include them. `so`: as
        in check."""
        if self._info.on_error == "mask" and self.sums[BAD_ROWS]:
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
