"""Inputs cut to their first batches: overfit_batches trains on them repeatedly, fast_dev_run evaluates one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pipeline.errors import FingerprintError, InputError
from trainer.inputs import Input, InputContext, MakeInput, as_input


def first_batches(input_fn: MakeInput, count: int, *, repeat: bool) -> MakeInput:
    """An input_fn of the first `count` batches from the input's beginning, once or endlessly."""

    def cut(ctx: InputContext) -> Input:
        source = as_input(input_fn(replace(ctx, start_step=0)), ctx.per_host_batch_size)
        return FirstBatches(source, count, repeat=repeat)

    return cut


class FirstBatches:
    """The first `count` batches of an input, in order, as they were first read: including augmentation.

    They are read once and stay in memory. A position is a number of batches. Proves nothing: records are left out."""

    def __init__(self, source: Input, count: int, *, repeat: bool) -> None:
        given = source.info
        self.info = replace(
            given,
            fingerprint=f"the first {count} batches of {given.fingerprint}",
            start=0,
            num_records=None,
            steps_per_epoch=count,
            expected_crc=None,
            endless=repeat,
            verify_command=None,
            totals={},
            provenance=None if given.provenance is None else {**given.provenance, "first_batches": count},
        )
        self._source, self._count, self._repeat, self._kept = source, count, repeat, list[Mapping[str, Any]]()
        self._end = source.advance(given.start, count)

    def batches(self, position: int, /) -> Iterator[Mapping[str, Any]]:
        """See Input. InputError if the source has fewer batches than `count`."""
        return _Batches(self._source, self._kept, self._count, position, self._repeat)

    def advance(self, position: int, n_batches: int, /) -> int:
        return position + n_batches

    def state(self, position: int, /) -> dict[str, Any]:
        return {"first_batches": self._count, "of": self._source.state(self._end), "batch": position}

    def restore(self, state: dict[str, Any], /) -> int:
        if state.get("first_batches") != self._count or self._source.restore(state["of"]) != self._end:
            raise FingerprintError(
                f"the checkpoint's input is {state}, this one is {self.info.fingerprint}. Give the overfit_batches "
                "that the run started with, or another workdir."
            )
        return state["batch"]


class _Batches(Iterator[Mapping[str, Any]]):
    """Not a generator: its close() reaches a source that another thread is waiting for."""

    def __init__(self, source: Input, kept: list[Any], count: int, position: int, repeat: bool) -> None:
        self._kept, self._count, self._position, self._repeat = kept, count, position, repeat
        missing = len(kept) < count
        self._rest = source.batches(source.advance(source.info.start, len(kept))) if missing else iter(())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)  # digest and skipped of a TfProgram

    def __next__(self) -> Mapping[str, Any]:
        if self._position >= self._count and not self._repeat:
            raise StopIteration
        number = self._position % self._count
        while len(self._kept) <= number:
            self._kept.append(self._read())
        self._position += 1
        return self._kept[number]

    def _read(self) -> Mapping[str, Any]:
        batch = next(self._rest, None)
        if batch is None:
            raise InputError(
                f"the input has only {len(self._kept)} batches; overfit_batches needs its first {self._count}. "
                "Ask for fewer."
            )
        if len(self._kept) + 1 == self._count:
            self.close()  # its threads and buffers are no longer needed
        return batch

    def close(self) -> None:
        """Closes the source, even while another thread is waiting for it."""
        getattr(self._rest, "close", lambda: None)()
