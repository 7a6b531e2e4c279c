"""An iterator over a DatasetInput's batches, and its threads: one reads ahead, one decodes.

Records of several batches are read as one group, so that one request reads neighbours. A DatasetInput passes in which
rows to read, and the function that makes a batch of their records. Damaged records are passed on."""

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from pipeline.background import Background, stalled
from pipeline.orders.order import Position, Rows
from pipeline.sources.records import RECORD_OBJECT_BYTES, Group, Proven, Reading, Record, Records

GROUP_BYTES = 16 * 1024**2  # read together
_TURN_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of one batch, and the records read for those that are not padding."""

    rows: Rows
    records: list[Record]

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        payloads = sum(len(record.payload) for record in self.records if isinstance(record, Proven))
        return payloads + RECORD_OBJECT_BYTES * len(self.records)


def planned_rows(order: Any, position: Position, rows: Sequence[range]) -> Iterator[Rows]:
    """These rows of the batches from a position on; endless for training."""
    steps = order.remaining(position)
    for _ in itertools.count() if steps is None else range(steps):
        yield order.rows(position, rows)
        position = order.advance(position, 1)


class Turns:
    """Lets the threads that read and that decode work one at a time, as long as neither waits for anything else.

    Both hold Python's lock nearly all the time where records are small. Left alone, they would hand it over at every
    step of NumPy, which doubles the CPU time of small records. One that waits for a disk, or for other threads, keeps
    the other waiting for no longer than 5 ms a batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        ours = self._lock.acquire(timeout=_TURN_SECONDS)
        try:
            yield
        finally:
            if ours:
                self._lock.release()


def read_ahead(records: Records, batches: Iterable[Rows], ahead_bytes: int, turns: Turns) -> Background[Delivery]:
    """Delivers `batches` in order. Holds up to ahead_bytes that are not yet taken, but at least one batch.

    Iterating raises StorageError. It has no time limit; its consumer has one."""
    waiting: deque[list[Rows]] = deque()

    def wanted() -> Iterator[Group]:
        for group, num_bytes in _groups(records, batches, min(ahead_bytes // 4, GROUP_BYTES)):
            waiting.append(group)
            yield Group(np.concatenate([_real(rows) for rows in group]), num_bytes)

    reading = records.read(wanted(), ahead_bytes)
    return Background(
        _deliveries(reading, waiting, turns),
        limit=lambda: ahead_bytes - reading.held_bytes,
        cost=lambda delivery: delivery.num_bytes,
        name="infeed-read",
    )


def _real(rows: Rows) -> np.ndarray:
    return rows.record_ids[rows.record_ids >= 0]


def _deliveries(reading: Reading, waiting: deque[list[Rows]], turns: Turns) -> Iterator[Delivery]:
    groups = iter(reading)
    while True:
        with turns():
            records = next(groups, None)
        if records is None:
            return
        left = iter(records)
        for rows in waiting.popleft():
            with turns():  # for each batch: otherwise a group of many batches is handed over while others are decoded
                delivery = Delivery(rows, list(islice(left, int((rows.record_ids >= 0).sum()))))
            yield delivery


def _groups(records: Records, batches: Iterable[Rows], most_bytes: int) -> Iterator[tuple[list[Rows], int]]:
    """Batches to read together, and their bytes.

    The first group is a single batch, so that it arrives early; groups then double up to 16 MiB."""
    group: list[Rows] = []
    group_bytes = target_bytes = 0
    for rows in batches:
        group.append(rows)
        group_bytes += records.weigh(_real(rows))
        if group_bytes >= target_bytes:
            yield group, group_bytes
            target_bytes = min(2 * group_bytes, most_bytes)
            group, group_bytes = [], 0
    if group:
        yield group, group_bytes


DECODING = 2  # decoded batches that wait
Batch = dict[str, np.ndarray]
T = TypeVar("T")


class Batches(Iterator[Batch]):
    """The batches from a position on. `close` returns immediately, whatever its threads wait for.

    `next` raises StallError if reading, or then decoding, takes longer than stall_seconds. Any error closes it."""

    def __init__(
        self, reading: Background[T], decode: Callable[[T], Batch], stall_seconds: float, turns: Turns
    ) -> None:
        self._reading: Background[Any] = reading
        self._stall_seconds = stall_seconds
        self._pool = pool = ThreadPoolExecutor(1, "infeed-decode")

        def decoded(delivery: T) -> Batch:
            with turns():
                return decode(delivery)

        futures = (pool.submit(decoded, delivery) for delivery in reading)
        # The only time limit is here: one of `reading` would also count while no one waits, and both could expire.
        self._decoded = Background(futures, limit=DECODING, name="infeed-submit", stall_seconds=stall_seconds)
        # If dropped without close, a thread in a stalled `next(reading)` would keep it alive.
        weakref.finalize(self, reading.close).atexit = False

    def __next__(self) -> Batch:
        try:
            return self._result(next(self._decoded))
        except CancelledError:
            raise StopIteration from None  # closed by another thread
        except Exception:
            self.close()
            raise

    def _result(self, future: Future[Batch]) -> Batch:
        try:
            return future.result(self._stall_seconds)
        except TimeoutError:
            if future.done():  # it finished at the last moment, or raised TimeoutError itself
                return future.result()
        raise stalled("a batch that is being decoded ('infeed-decode')", self._stall_seconds)

    def close(self) -> None:
        """Ends the iteration. Threads end as soon as the disk and the ops return control."""
        self._reading.close()
        self._decoded.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self, timeout_seconds: float) -> bool:
        """Waits for reading and then submitting to end, this long each. Returns whether both have."""
        return self._reading.join(timeout_seconds) & self._decoded.join(timeout_seconds)
