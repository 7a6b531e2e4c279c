"""Which records a step of training saw, computed from the history of its work directory. NumPy only.

The order is a pure function of (seed, position), so the start of a run and its settings are enough. Bad records, which
depend on the data, are in the history."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.orders.order import Position
from pipeline.orders.recorded import restored_order
from trainer.history.segments import NAME, History, Start

__all__ = ["SeenBatch", "seen_batches", "start_of"]


@dataclass(frozen=True)
class SeenBatch:
    """The global batch of a step, in row order; each array has an entry per row.

    record_ids: int64, the numbers of the records in the input, as `_index` had them. epochs: int64, of each record.
    replaced: int64, the bad record that a row had been planned for, -1 if there was none. masked: bool, whether the row
    is a bad record that was left out."""

    step: int
    start: Start
    record_ids: np.ndarray
    epochs: np.ndarray
    replaced: np.ndarray
    masked: np.ndarray


def start_of(history: History, step: int, workdir: str) -> Start:
    """The start of the run that trained a step, or would train it next.

    Raises OptionError for a step that no recorded run trained, and CheckpointError where the input of that run does not
    tell what it read."""
    if step < 1:
        raise OptionError(f"step {step} does not exist: the first step of training is 1.")
    start = history.start_of(step)
    if not history.starts:
        raise CheckpointError(
            f"{workdir} has no {NAME}, so no step can be traced. Training writes it when it starts; give the --workdir "
            "of a training, by this version of infeed or a later one."
        )
    if start is None:
        first = min(each.step for each in history.starts)
        raise OptionError(
            f"step {step} is before the history of {workdir}, which begins after step {first}: an earlier version of "
            "infeed trained the first steps."
        )
    if start.input is None:
        raise CheckpointError(
            f"the run that trained step {step} read an input that does not tell where its records come from: an "
            "iterable, or an Input without `provenance`. Only inputs made by train_dataset can be traced."
        )
    return start


def seen_batches(history: History, steps: range, workdir: str) -> Iterator[SeenBatch]:
    """The batches of these steps, in order. Raises what `start_of` raises."""
    traces: dict[int, _Trace] = {}
    for step in steps:
        start = start_of(history, step, workdir)
        if id(start) not in traces:
            traces = {id(start): _Trace(start, history)}
        yield traces[id(start)].batch(step)


class _Trace:
    """The batches of the run that began at a start."""

    def __init__(self, start: Start, history: History) -> None:
        assert start.input is not None
        self._start, self._given = start, start.input
        self._order = restored_order(self._given["order"])
        self._bad = history.bad_records(self._given["fingerprint"])
        self._source_starts = np.array(self._given["source_starts"])

    def batch(self, step: int) -> SeenBatch:
        rows = self._order.rows(self._position(step), [range(self._order.global_batch)])
        ids, bad = rows.record_ids, np.isin(rows.record_ids, list(self._bad))
        replaced, on_error = np.full(len(ids), -1), self._given["on_error"]
        if on_error == "skip" and bad.any():
            replaced[bad] = ids[bad]
            ids = ids.copy()
            ids[bad] = [self._stand_in(number) for number in ids[bad].tolist()]
        masked = bad if on_error == "mask" else np.zeros(len(ids), bool)
        return SeenBatch(step, self._start, ids, rows.epochs, replaced, masked)

    def _position(self, step: int) -> Position:
        """Of the input, before this step."""
        state, steps, order = self._start.position, step - 1 - self._start.step, self._order
        if count := self._given.get("first_batches"):
            return order.advance(order.start, (state["batch"] + steps) % count)
        return order.advance(Position(state["epoch"], state["records"]), steps)

    @functools.cache  # noqa: B019 (a trace lives as long as its command)
    def _stand_in(self, bad: int) -> int:
        """The next record of the same source that is not bad: see `Assembly`, which finds it by reading."""
        source = int(np.searchsorted(self._source_starts, bad, side="right"))
        first, end = self._source_starts[source - 1 : source + 1].tolist()
        after = (first + (bad - first + step) % (end - first) for step in range(1, end - first))
        return next(number for number in after if number not in self._bad)
