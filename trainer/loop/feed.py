"""The feeder: a thread that reads, checks, stacks and places host batches ahead of the device."""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Protocol

import jax
import numpy as np

from pipeline.background import Background
from pipeline.shards.errors import InputError, StallError
from trainer.batch_spec import check_batch
from trainer.interruptible import Check

__all__ = ["Chunk", "Chunks", "Feeder"]

DEPTH = 2  # chunks placed ahead; one more is being placed and one is in use
CLOSE_WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Chunk:
    """The batches of one dispatch, on the devices: `length` of them, or one super-batch if `stacked`."""

    start: int
    length: int
    batches: tuple[Any, ...]
    stacked: bool


class Placing(Protocol):
    """What the feeder needs of a Program."""

    scans: bool

    def place(self, host_batch: Any, stacked: bool, /) -> Any:
        """The host's rows of one batch, or of stacked ones, on the devices."""
        ...


class Chunks:
    """One Chunk for each of `lengths`, after `start` steps, placed on devices by `program`.

    end: the step at which the lengths end; None where the input ends them. read: the step of the newest batch that has
    come. Iterating raises InputError, naming the step, for a batch unlike `struct` and for an input that ends early.
    Exceptions of the input pass as they are, with a note that names the step."""

    def __init__(
        self,
        batches: Iterator[Mapping[str, Any]],
        start: int,
        end: int | None,
        lengths: Iterable[int],
        struct: Mapping[str, Any],
        program: Placing,
    ) -> None:
        self.read = start
        self._batches, self._start, self._end, self._lengths = batches, start, end, lengths
        self._struct, self._program = struct, program

    def __iter__(self) -> Iterator[Chunk]:
        with ExitStack() as stack:
            # Here, in the thread that runs it, a generator can be closed; from another thread it cannot.
            stack.callback(_close, self._batches)
            step = self._start
            for length in self._lengths:
                host = list(itertools.islice(self._host_batches(), length))
                if len(host) < length:
                    return
                yield self._placed(step, host)
                step += length

    def _host_batches(self) -> Iterator[dict[str, Any]]:
        while (batch := self._next()) is not None:
            self.read += 1
            yield batch
        if self._end is not None:
            raise InputError(
                f"the input ended before step {self.read + 1}: it gave {self.read - self._start} batches from step "
                f"{self._start + 1} on, wanted {self._end - self._start}. Repeat the input, or ask for fewer steps."
            )

    def _next(self) -> dict[str, Any] | None:
        try:
            batch = next(self._batches, None)
            if batch is not None:
                check_batch(batch, self._struct)
        except Exception as error:
            error.add_note(f"while reading the batch of step {self.read + 1}")
            raise
        return None if batch is None else dict(batch)

    def _placed(self, step: int, host: list[dict[str, Any]]) -> Chunk:
        program, length = self._program, len(host)
        if program.scans and length > 1:
            return Chunk(step, length, (program.place(jax.tree.map(_stacked, *host), True),), True)
        return Chunk(step, length, tuple(program.place(batch, False) for batch in host), False)

    def close(self) -> None:
        """Closes the input from another thread than the one that iterates, where that can be done."""
        if not isinstance(self._batches, GeneratorType):
            _close(self._batches)


def _stacked(*rows: np.ndarray) -> np.ndarray:
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)  # half the time of np.stack


def _close(batches: Any) -> None:
    if hasattr(batches, "close"):
        batches.close()


class Feeder(Iterator[Chunk]):
    """Runs `source` two chunks ahead in a thread. `wait_seconds`: how long the host waited.

    stall_seconds: how long one batch may take; longer is a StallError, with the stacks of all threads in the log.
    check: called while a chunk is waited for. It may raise, and the chunk comes with the next `next`."""

    def __init__(self, source: Chunks, stall_seconds: float, check: Check = lambda: None) -> None:
        self.wait_seconds = 0.0
        self._source, self._check = source, check
        self._begun = self._heard = source.read
        self._ahead = Background(
            source, limit=DEPTH, name="trainer-feeder", stall_seconds=stall_seconds, check=self._alive
        )

    def _alive(self) -> bool:
        """Whether a batch has come since the last time: k of them may take long."""
        self._check()
        heard, self._heard = self._heard, self._source.read
        return self._heard > heard

    def __next__(self) -> Chunk:
        started = time.perf_counter()
        try:
            return next(self._ahead)
        except StallError as error:
            read = self._source.read
            last = f"the last batch that came was that of step {read}" if read > self._begun else "none came"
            error.add_note(f"waiting for the input: {last}")
            raise
        finally:
            self.wait_seconds += time.perf_counter() - started

    def close(self) -> None:
        """Ends the thread, and the input under it, also while that waits for a stalled source."""
        self._ahead.close()
        self._source.close()
        self._ahead.join(CLOSE_WAIT_SECONDS)
