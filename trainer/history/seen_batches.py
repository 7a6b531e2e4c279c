"""Which records a step of training saw, computed from the history of its work directory. NumPy only.

The order is a pure function of (seed, position), so the start of a run and its settings are enough. Bad records, which
depend on the data, are in the history."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import CheckpointError
from pipeline.inputs.provenance import Origin, restored_order, stand_ins
from pipeline.orders.order import Position
from trainer.history.segments import REMEDY, History, Segment, segment_of
from trainer.workdir import SEGMENTS


@dataclass(frozen=True)
class SeenBatch:
    """The global batch of a step, in row order; each array has an entry per row.

    origins: the sources of the input, in the order of their records' numbers; the same object for steps of one run.
    record_ids: int64, the numbers of the records in the input, as `_index` had them. epochs: int64, of each record.
    replaced: int64, the bad record that a row had been planned for, -1 if there was none. masked: bool, whether the row
    is a bad record that was left out."""

    step: int
    origins: Sequence[Origin]
    record_ids: np.ndarray
    epochs: np.ndarray
    replaced: np.ndarray
    masked: np.ndarray


def seen_batches(history: History, steps: range, workdir: str) -> Iterator[SeenBatch]:
    """The batches of these steps, in order.

    Raises what `segment_of` raises, and CheckpointError where the input of a run does not tell what it read."""
    traces: dict[int, _Trace] = {}
    for step in steps:
        segment = segment_of(history, step, workdir)
        with _explained(segment, step, workdir):
            if id(segment) not in traces:
                traces = {id(segment): _Trace(segment, segment.start.input or {})}
            batch = traces[id(segment)].batch(step)
        yield batch


@contextlib.contextmanager
def _explained(segment: Segment, step: int, workdir: str) -> Iterator[None]:
    if segment.start.input is None:
        raise CheckpointError(
            f"the run that trained step {step} read an input that does not tell where its records come from: an "
            "iterable, or an Input without `provenance`. Only inputs made by train_dataset can be traced."
        )
    try:
        yield
    except Exception as e:  # the line may contain anything
        raise CheckpointError(
            f"{workdir}/{SEGMENTS}: the start after step {segment.start.step} has no valid input ({e!r}). {REMEDY}"
        ) from e


class _Trace:
    """The batches of the run of a segment."""

    def __init__(self, segment: Segment, given: Mapping[str, Any]) -> None:
        self._start, self._given = segment.start, given
        self._order = restored_order(given["order"])
        self._origins = msgspec.convert(given["sources"], list[Origin])
        if sum(len(range(origin.first, origin.stop)) for origin in self._origins) != self._order.num_records:
            raise ValueError("its sources have another number of records")
        self._on_error, self._bad = given["on_error"], segment.bad_records

    def batch(self, step: int) -> SeenBatch:
        rows = self._order.rows(self._position(step), [range(self._order.global_batch)])
        ids, bad = rows.record_ids, np.isin(rows.record_ids, list(self._bad))
        replaced = np.full(len(ids), -1)
        if self._on_error == "skip" and bad.any():
            replaced[bad] = ids[bad]
            ids = ids.copy()
            ids[bad] = [self._stand_in(number) for number in ids[bad].tolist()]
        masked = bad if self._on_error == "mask" else np.zeros(len(ids), bool)
        return SeenBatch(step, self._origins, ids, rows.epochs, replaced=replaced, masked=masked)

    def _position(self, step: int) -> Position:
        """Of the input, before this step."""
        state, steps, order = self._start.position, step - 1 - self._start.step, self._order
        if count := self._given.get("first_batches"):
            return order.advance(order.start, (state["batch"] + steps) % count)
        return order.advance(Position(state["epoch"], state["records"]), steps)

    @functools.cache  # noqa: B019 (a trace lives as long as its command)
    def _stand_in(self, bad: int) -> int:
        numbers = stand_ins(self._given["source_starts"], bad)
        return next(number for number in numbers if number not in self._bad)
