"""States of a tf.data iterator, with which a training resumes: when they are saved, which two are
kept, and whether they can be trusted.

program.py uses it. NumPy only."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.background import Background
from pipeline.logs import log
from pipeline.shards.frames import crc32c, crc32c_of
from pipeline.sizes import format_bytes
from pipeline.spec import leaves

MOST_BYTES = 256 * 2**20  # of a state; two are kept in memory
EVERY_SECONDS = 5.0  # as many seconds of reading are repeated at most, or 20 times a save
TEST_SECONDS = 60.0
TESTED = 16  # batches


class SavableIterator(Protocol):
    """An iterator whose state can be saved. graph: identifies the program, as far as its graph
    shows it."""

    graph: str

    def __next__(self) -> Mapping[str, Any]: ...

    def save(self) -> bytes:
        """The state. Raises, with the reason, if the program has none that is exact."""
        ...

    def restore(self, data: bytes, /) -> None:
        """Continues from a state. Raises for that of another program."""
        ...

    def again(self) -> "SavableIterator":
        """Another one of the same program, at its beginning."""
        ...


@dataclass
class IteratorState:
    """The state of an iterator after that many batches of its program.

    crc: the checksum of these; first: of the first one; following: of these and the next one, once
    it is known. graph: see SavableIterator. data: as tf.data makes it; data_crc: its crc32c."""

    batches: int
    crc: int
    first: int
    graph: str
    data_crc: int
    data: bytes
    following: int | None = None

    def without_data(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {name: value for name, value in vars(self).items() if name != "data"}


def chained(crc: int, batch: Mapping[str, Any]) -> int:
    """The checksum of the batches so far and this one."""
    arrays = (leaf for _, leaf in sorted(leaves(batch), key=lambda each: each[0]))
    pieces: Any = map(np.ascontiguousarray, arrays)
    return crc32c_of([crc.to_bytes(4, "little"), *pieces])


class IteratorStates:
    """The states of one pass of a program. The first one is tested: a second iterator has to
    continue from it with the batches that the run reads.

    name: of the program. resumed: the state with which the pass begins; an earlier run tested it.
    obstacle: why no state can be trusted; "" if they can be, None before the test has ended."""

    def __init__(self, name: str, resumed: IteratorState | None = None) -> None:
        self.obstacle = "" if resumed else None
        self._name = name
        self._states = [resumed] if resumed else []
        self._first = resumed.first if resumed else 0
        self._began = time.monotonic()
        self._due = self._began + min(1.0, EVERY_SECONDS)
        self._test: Background[None] | None = None

    def newest(self, position: int) -> IteratorState | None:
        """The newest at or before a position, if states can be trusted."""
        states = self._states if self.obstacle == "" else ()
        before = (state for state in states if state.batches <= position)
        return max(before, key=lambda state: state.batches, default=None)

    def save(self, iterator: SavableIterator, at: int, crc: int, taken: int) -> None:
        """Saves the state after `at` batches, if it is time. crc: see IteratorState.

        taken: the training is at least there. Two states are enough because the next one is saved
        only when the training has passed the newest: then no checkpoint needs the one before."""
        began = time.monotonic()
        if (
            self.obstacle
            or began < self._due
            or (self._states and self._states[-1].batches > taken)
        ):
            return
        if self._states and self.obstacle is None:
            if self._test:
                self._give_up(f"its test took more than {TEST_SECONDS:g} s")
            return
        try:
            data = iterator.save()
            state = IteratorState(at, crc, self._first, iterator.graph, crc32c(data), data)
        except Exception as error:  # whatever tf.data raises must not end the training
            self._give_up(str(error))
            return
        self._states = [*self._states[-1:], state]
        now = time.monotonic()
        self._due = now + max(EVERY_SECONDS, 20 * (now - began))
        size = format_bytes(len(data))
        log.debug("saved the iterator after %d batches, %s, in %.3f s", at, size, now - began)

    def passed(self, iterator: SavableIterator, at: int, crc: int) -> None:
        """Notes the checksum after each batch. Begins the test, in the background, once the run has
        read the batches to compare."""
        if at == 1:
            self._first = crc
        state = self._states[-1] if self._states else None
        if state and at == state.batches + 1:
            state.following = crc
        if state and at == state.batches + TESTED and self.obstacle is None:
            self._due = time.monotonic() + TEST_SECONDS
            test = self._tested(iterator, state, crc)
            self._test = Background(test, limit=TESTED, name="infeed-trust")

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
        except Exception as error:  # as in `save`
            why = repr(error)
        if self.obstacle is None and crc != expected:
            self._give_up(why)
        elif self.obstacle is None:
            self._due = time.monotonic() + EVERY_SECONDS
            self.obstacle = ""

    def _give_up(self, why: str) -> None:
        self.obstacle = why
        self._states = []
        log.warning(
            "to resume, %s will run again from its beginning, decoding included: %s",
            self._name,
            why,
        )

    def close(self) -> None:
        """Ends the test."""
        if self._test:
            self._test.close()
