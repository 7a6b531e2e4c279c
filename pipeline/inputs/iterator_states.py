"""States of a tf.data iterator, with which a training resumes: when they are saved, which of them
are held in memory, and whether they can be trusted.

program.py uses it. NumPy only."""

import time
from collections.abc import Iterator, Mapping
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

    def again(self) -> "SavableIterator":
        """Another one of the same program."""
        ...


@dataclass(frozen=True)
class IteratorState:
    """Of an iterator after that many batches of its program.

    crc: the checksum of these, first: of the first one. graph: see SavableIterator. data: as
    tf.data makes it, data_crc: its crc32c."""

    batches: int
    crc: int
    first: int
    graph: str
    data_crc: int
    data: bytes

    def described(self) -> dict[str, Any]:
        """What a checkpoint says of it: all but the data."""
        return {name: value for name, value in vars(self).items() if name != "data"}


def chained(crc: int, batch: Mapping[str, Any]) -> int:
    """The checksum of the batches so far and this one."""
    arrays = (leaf for _, leaf in sorted(leaves(batch), key=lambda each: each[0]))
    pieces: Any = map(np.ascontiguousarray, arrays)
    return crc32c_of([crc.to_bytes(4, "little"), *pieces])


class IteratorStates:
    """Those of a pass of a program. They are saved in the thread that reads, and the first one is
    tested, because some programs silently continue otherwise than they would have.

    name: of the program. resumed: the state with which the pass begins."""

    def __init__(self, name: str, resumed: IteratorState | None = None) -> None:
        self._name = name
        self._resumed = resumed
        self._first: IteratorState | None = None
        self._saved: tuple[IteratorState, ...] = ()  # ascending
        self._trusted = False
        self._obstacle = ""
        self._began = self._free_at = time.monotonic()
        self._cost = SHARE  # seconds; so the first state is saved after one second
        self._test: Background[None] | None = None

    def newest(self, position: int) -> IteratorState | None:
        """The newest at or before a position that can be trusted."""
        states = (self._resumed, *(self._saved if self._trusted else ()))
        before = (state for state in states if state and state.batches <= position)
        return max(before, key=lambda state: state.batches, default=None)

    def save(
        self,
        iterator: SavableIterator,
        at: int,
        crc: int,
        first: int,
        taken: int,
        planned: bool,
    ) -> None:
        """Saves the state after `at` batches, if it is time. crc, first: see IteratorState.

        taken: no checkpoint follows of a position before. planned: whether one follows of this
        position."""
        wait = min(self._cost / (PLANNED_SHARE if planned else SHARE), EVERY_SECONDS)
        if self._obstacle or time.monotonic() < self._free_at + wait:
            return
        before = (state.batches for state in self._saved if state.batches <= taken)
        needed = max(before, default=0)
        saved = self._saved = tuple(state for state in self._saved if state.batches >= needed)
        if sum(len(state.data) for state in (*saved, *saved[-1:])) > HELD_BYTES:
            return
        began = time.monotonic()
        try:
            data = _checked(iterator)
            state = IteratorState(at, crc, first, iterator.graph, crc32c(data), data)
        except InputError as error:
            self._give_up(str(error), at)
            return
        self._free_at = time.monotonic()
        self._cost = self._free_at - began
        if not self._test:
            self._first = self._first or state
        self._saved = (*saved, state)
        size = format_bytes(len(data))
        log.debug("saved the iterator after %d batches, %s, in %.3f s", at, size, self._cost)

    def passed(self, iterator: SavableIterator, at: int, crc: int) -> None:
        """Begins the test, in the background, once the run has read the batches to compare."""
        state = self._first
        if state and at == state.batches + TESTED:
            test = self._tested(iterator, state, crc)
            self._test = Background(test, limit=TESTED, name="infeed-trust")
            self._first = None

    def _tested(
        self, iterator: SavableIterator, state: IteratorState, expected: int
    ) -> Iterator[None]:
        crc, why = state.crc, "a restored iterator delivers other batches"
        try:
            again = iterator.again()
            again.restore(state.data)
            for _ in range(TESTED):
                crc = chained(crc, next(again))
                yield
        except InputError as error:
            why = str(error)
        self._trusted = crc == expected
        if not self._trusted:
            self._saved = ()
            self._give_up(why, state.batches)

    def _give_up(self, why: str, at: int) -> None:
        self._obstacle = why
        log.warning(
            "to resume, %s will run again from its beginning, decoding included (%.1f s for its "
            "first %d batches): %s",
            self._name,
            time.monotonic() - self._began,
            at,
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
