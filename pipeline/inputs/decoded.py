"""An evaluation that is decoded only once: after one complete pass, its batches are served from memory.

eval_dataset returns it for cache="decoded". Training cannot use it, because its batches never repeat."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from pipeline.errors import OptionError
from pipeline.inputs.batches import Batch, Batches
from pipeline.inputs.dataset_input import DatasetInput
from pipeline.logs import log
from pipeline.orders.order import Position
from pipeline.sizes import format_bytes, room_for_a_cache
from pipeline.spec import leaves, mapped


class DecodedInput(DatasetInput):
    """A DatasetInput of an evaluation that keeps this host's batches of its first complete pass.

    Their arrays are read-only. A pass that failed, was closed or did not begin at the start is not kept; of two
    concurrent passes only the second may be. Threads may share it. OptionError if free memory is too small."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        batch_bytes = sum(spec.num_bytes for _, spec in leaves(self.spec))
        needed, limit = self.steps_per_epoch * batch_bytes, room_for_a_cache()
        log.info(
            "%s: caching %s decoded in RAM: %d batches of %s",
            self._records.info.name, format_bytes(needed), self.steps_per_epoch, format_bytes(batch_bytes),
        )  # fmt: skip
        if needed > limit:
            raise OptionError(
                f"cache='decoded' needs {format_bytes(needed)} on this host, {self.steps_per_epoch} batches of "
                f"{format_bytes(batch_bytes)}; {format_bytes(limit)} of memory are available. Cache encoded records "
                "instead (cache='ram' or a directory), or take fewer keys, or leave the cache out."
            )
        self._kept: Sequence[Batch] = ()
        self._recording: weakref.ref[_Recording] | None = None

    def __copy__(self) -> "DecodedInput":  # whose batches may have other numbers
        other = object.__new__(type(self))
        vars(other).update(vars(self), _kept=(), _recording=None)
        return other

    def batches(self, position: Position | None = None) -> Batches:
        first = (self.start if position is None else position).records
        step, within = divmod(first, self.advance(self.start, 1).records)
        if self._kept and not within:
            return _Replay(islice(self._kept, step, None))
        batches = super().batches(position)
        return batches if self._kept or first else self._recorded(batches)

    def _recorded(self, batches: Batches) -> Batches:
        before = self._recording and self._recording()
        if before:
            before.forget()
        recording = _Recording(batches, self.steps_per_epoch, self._keep)
        self._recording = weakref.ref(recording)
        return recording

    def _keep(self, batches: Sequence[Batch]) -> None:
        self._kept = batches


class _Replay(Batches):
    """Batches in memory, without a thread."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def __next__(self) -> Batch:
        return _copied(next(self._batches))

    def close(self) -> None:
        self._batches = iter(())

    def join(self, timeout_seconds: float) -> bool:
        return True


class _Recording(Batches):
    """Passes on the batches of another iterator. After the last one it calls `keep` with all of them."""

    def __init__(self, batches: Batches, steps: int, keep: Callable[[Sequence[Batch]], None]) -> None:
        self._batches, self._steps, self._keep = batches, steps, keep
        self._seen: list[Batch] | None = []

    def __next__(self) -> Batch:
        batch = next(self._batches)
        for _, array in leaves(batch):
            array.flags.writeable = False
        seen = self._seen
        if seen is not None:
            seen.append(batch)
            if len(seen) == self._steps:
                self._keep(tuple(seen))
                self.forget()
        return _copied(batch)

    def forget(self) -> None:
        self._seen = None

    def close(self) -> None:
        self.forget()
        self._batches.close()

    def join(self, timeout_seconds: float) -> bool:
        return self._batches.join(timeout_seconds)


def _copied(batch: Batch) -> Batch:
    """The same arrays in new dicts, so that a consumer can remove keys."""
    return mapped(lambda array: array, batch)
