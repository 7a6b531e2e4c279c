"""States of a tf.data iterator, with which a training resumes: when they are saved, which of them
are held, and whether they can be trusted.

program.py saves them, pipeline.tf_data makes them. NumPy only."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.background import Background
from pipeline.errors import InputError
from pipeline.logs import log
from pipeline.shards.frames import crc32c, crc32c_of
from pipeline.sizes import format_bytes
from pipeline.spec import leaves

MOST_BYTES = 256 * 2**20  # of a state
HELD_BYTES = 2 * MOST_BYTES  # of all that are held in memory
EVERY_SECONDS = 30.0
# Saving may take this part of the time; before a planned checkpoint more, as nothing is then
# read again.
SHARE, PLANNED_SHARE = 1 / 20, 1 / 5
TESTED = 16  # batches


class SavableIterator(Protocol):
    """An iterator whose state can be saved. graph: identifies the program, as far as its graph
    shows it. obstacle: why a state would not tell how it continues, if the graph shows that."""

    graph: str
    obstacle: str

    def __next__(self) -> Mapping[str, Any]: ...

    def save(self) -> bytes:
        """The state. InputError, with the reason, if the program has none."""
        ...

    def restore(self, data: bytes, /) -> None:
        """Continues from a state. InputError for that of another program."""
        ...


@dataclass(frozen=True)
class Described:
    """What a checkpoint says of a state.

    batches: how many the iterator had delivered. crc: their checksum; first: of the first one.
    graph: see SavableIterator. bytes, crc32c: of the state."""

    batches: int
    crc: int
    first: int
    graph: str
    bytes: int
    crc32c: int


@dataclass(frozen=True)
class IteratorState:
    """A state, as tf.data makes it."""

    described: Described
    data: bytes


def chained(crc: int, batch: Mapping[str, Any]) -> int:
    """The checksum of the batches so far and this one."""
    arrays = (leaf for _, leaf in sorted(leaves(batch), key=lambda each: each[0]))
    pieces: Any = map(np.ascontiguousarray, arrays)
    return crc32c_of([crc.to_bytes(4, "little"), *pieces])


class IteratorStates:
    """Those that a Program holds. resumed: that of the checkpoint with which the run began.

    saved: of the newest pass, ascending; trusted: whether they have been tested."""

    def __init__(self, resumed: IteratorState | None = None) -> None:
        self.resumed = resumed
        self.saved: tuple[IteratorState, ...] = ()
        self.trusted = False

    def newest(self, position: int) -> IteratorState | None:
        """The newest at or before a position that can be trusted."""
        held = [self.resumed] if self.resumed else []
        held += self.saved if self.trusted else ()
        return max(
            (state for state in held if state.described.batches <= position),
            key=lambda state: state.described.batches,
            default=None,
        )


class Saver:
    """Saves states of the iterator of a pass, in the thread that reads, and tests the first one.

    again: makes another iterator of the program, for the test. name: of the program."""

    def __init__(
        self,
        states: IteratorStates,
        again: Callable[[], SavableIterator],
        name: str,
    ) -> None:
        self._states = states
        self._again = again
        self._name = name
        self._obstacle = ""
        self._free_at = time.monotonic()
        self._cost = SHARE  # seconds; the first state is saved after one
        self._first: IteratorState | None = None
        self._test: Background[None] | None = None

    def save(
        self,
        iterator: SavableIterator,
        at: int,
        crc: int,
        first: int,
        taken: int,
        planned: bool,
    ) -> None:
        """Saves the state after `at` batches, if it is time. crc, first: see Described. taken: no
        checkpoint follows of a position before. planned: one follows of this position."""
        wait = min(self._cost / (PLANNED_SHARE if planned else SHARE), EVERY_SECONDS)
        if self._obstacle or time.monotonic() < self._free_at + wait:
            return
        saved = self._states.saved
        needed = [state for state in saved if state.described.batches <= taken][-1:]
        saved = (*needed, *(state for state in saved if state.described.batches > taken))
        self._states.saved = saved
        if sum(len(state.data) for state in (*saved, *saved[-1:])) > HELD_BYTES:
            return
        began = time.monotonic()
        try:
            data = _checked(iterator)
        except InputError as error:
            self._give_up(str(error))
            return
        self._free_at = time.monotonic()
        self._cost = self._free_at - began
        size, data_crc = len(data), crc32c(data)
        described = Described(at, crc, first, iterator.graph, size, data_crc)
        state = IteratorState(described, data)
        self._first = self._first or state
        self._states.saved = (*saved, state)
        log.debug(
            "saved the state after %d batches, %s, in %.3f s", at, format_bytes(size), self._cost
        )

    def passed(self, at: int, crc: int) -> None:
        """Begins the test, in the background, once the run has read as many batches as it
        compares."""
        state = self._first
        if state and at == state.described.batches + TESTED:
            self._test = Background(self._tested(state, crc), limit=TESTED, name="infeed-trust")

    def _tested(self, state: IteratorState, expected: int) -> Iterator[None]:
        crc = state.described.crc
        try:
            iterator = self._again()
            iterator.restore(state.data)
            for _ in range(TESTED):
                crc = chained(crc, next(iterator))
                yield
        except InputError as error:
            self._give_up(str(error))
            return
        if crc == expected:
            self._states.trusted = True
        else:
            self._give_up("an iterator that was restored from its state delivers other batches")

    def _give_up(self, why: str) -> None:
        self._obstacle = why
        self._states.saved = ()
        log.warning(
            "%s: a resume will run the program again from its beginning, decoding included, "
            "because %s",
            self._name,
            why,
        )

    def close(self) -> None:
        """Ends the test."""
        if self._test:
            self._test.close()


def _checked(iterator: SavableIterator) -> bytes:
    """Its state. InputError, with the reason, if it would not be of use."""
    if iterator.obstacle:
        raise InputError(iterator.obstacle)
    data = iterator.save()
    if len(data) > MOST_BYTES:
        raise InputError(
            f"its state has {format_bytes(len(data))}, more than {format_bytes(MOST_BYTES)}: what "
            "shuffles and prefetches hold. Make them smaller, or shuffle before decoding"
        )
    return data
