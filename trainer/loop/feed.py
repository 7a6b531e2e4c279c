"""The feeder: a thread that reads, checks, stacks and places host batches ahead of the device."""

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
from trainer.inputs import check_batch
from trainer.interruptible import Check

__all__ = ["Chunk", "Feeder", "chunks"]

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


def chunks(
    batches: Iterator[Mapping[str, Any]],
    start: int,
    end: int | None,
    lengths: Iterable[int],
    struct: Mapping[str, Any],
    program: Placing,
) -> Iterator[Chunk | int]:
    """One Chunk for each of `lengths`, after `start` steps, placed on devices by `program`.

    Before each come the steps whose batches have been read, as signs of life: k batches may take long.
    end: the step at which the lengths end; None where the input ends them. InputError, naming the step, for a batch
    unlike `struct` and for an input that ends early. Exceptions of the input pass as they are, with a note that names
    the step."""
    with ExitStack() as stack:
        # Here, in the thread that runs it, a generator can be closed; from another thread it cannot.
        stack.callback(_close, batches)
        step = start
        for length in lengths:
            host = []
            for number in range(step, step + length):
                batch = _read(batches, number, struct)
                if batch is None and end is None:
                    return
                if batch is None:
                    raise InputError(
                        f"the input ended before step {number + 1}: it gave {number - start} batches from step "
                        f"{start + 1} on, wanted {(end or 0) - start}. Repeat the input, or ask for fewer steps."
                    )
                host.append(batch)
                yield number + 1
            stacked = program.scans and length > 1
            if stacked:
                placed = (program.place(jax.tree.map(lambda *rows: np.stack(rows), *host), True),)
            else:
                placed = tuple(program.place(batch, False) for batch in host)
            yield Chunk(step, length, placed, stacked)
            step += length


def _read(batches: Iterator[Any], step: int, struct: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        batch = next(batches, None)
        if batch is not None:
            check_batch(batch, struct)
    except Exception as error:
        error.add_note(f"while reading the batch of step {step + 1}")
        raise
    return None if batch is None else dict(batch)


def _close(batches: Any) -> None:
    if hasattr(batches, "close"):
        batches.close()


class Feeder(Iterator[Chunk]):
    """Runs `source`, the chunks of `batches`, two ahead in a thread. `wait_seconds`: how long the host waited.

    stall_seconds: how long one batch may take; longer is a StallError, with the stacks of all threads in the log.
    check: called while a chunk is waited for. It may raise, and the chunk comes with the next `next`."""

    def __init__(
        self,
        source: Iterator[Chunk | int],
        batches: Iterator[Any],
        stall_seconds: float,
        check: Check = lambda: None,
    ) -> None:
        self.wait_seconds = 0.0
        self._batches, self._last_step = batches, 0
        # A sign of life costs nothing: only chunks are placed on devices.
        self._ahead = Background(
            source,
            limit=DEPTH,
            cost=lambda item: int(isinstance(item, Chunk)),
            name="trainer-feeder",
            stall_seconds=stall_seconds,
            check=check,
        )

    def __next__(self) -> Chunk:
        started = time.perf_counter()
        try:
            while not isinstance(item := next(self._ahead), Chunk):
                self._last_step = item
            return item
        except StallError as error:
            last = f"the last batch that came was that of step {self._last_step}" if self._last_step else "none came"
            error.add_note(f"waiting for the input: {last}")
            raise
        finally:
            self.wait_seconds += time.perf_counter() - started

    def close(self) -> None:
        """Ends the thread, and the input under it, also while that waits for a stalled source."""
        self._ahead.close()
        if not isinstance(self._batches, GeneratorType):
            _close(self._batches)
        self._ahead.join(CLOSE_WAIT_SECONDS)
