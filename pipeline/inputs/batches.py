"""An iterator over a DatasetInput's batches, and its threads: one reads ahead, one decodes.

Records of several batches are read as one group, so that one request reads neighbours. A
DatasetInput passes in which rows to read, and the function that makes a batch of their records.
Damaged records are passed on. What the first batches took decides whether worker processes make the
others."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pipeline.background import Background
from pipeline.orders.order import Position, Rows
from pipeline.sources.records import Group, Reading, Record, Records

GROUP_BYTES = 16 * 1024**2  # read together
# decoded together: more no longer fit the processor's caches
TOGETHER_ROWS = 512
TOGETHER_BYTES = 2 * 1024**2
# planned together: to ask a stream for rows costs as much as 20 of them
PLANNED_ROWS = 4096
_TURN_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of one batch, or of several, and the records read for those that are not padding."""

    rows: Rows
    records: list[Record]

    @property
    def intact(self) -> bool:
        """Whether none of the records is damaged."""
        return set(map(type, self.records)) <= {tuple}

    def part(self, begin: int, end: int) -> "Delivery":
        """The delivery of only these rows."""
        ids, epochs, seed = self.rows
        before, last = (int((ids[:at] >= 0).sum()) for at in (begin, end))
        return Delivery(Rows(ids[begin:end], epochs[begin:end], seed), self.records[before:last])


def batches_together(rows: int, row_bytes: float, read_ahead_bytes: int) -> int:
    """How many batches, of `rows` rows each, are made in one step. A step costs as much as 50 rows
    of numbers.

    row_bytes: of a record or of what it is decoded to, whichever is larger."""
    most = min(TOGETHER_BYTES, read_ahead_bytes)
    return max(1, int(min(TOGETHER_ROWS // rows, most // max(1, rows * row_bytes))))


def planned_rows(
    order: Any, position: Position, rows: Sequence[range], together: int = 1
) -> Iterator[Rows]:
    """These rows of the batches from a position on, `together` batches at a time; endless for
    training."""
    step = together * sum(map(len, rows))
    planned = together * max(1, PLANNED_ROWS // step)
    while (left := order.remaining(position)) != 0:
        count = planned if left is None else min(planned, left)
        ids, epochs, seed = order.rows(position, rows, count)
        for at in range(0, len(ids), step):
            yield Rows(ids[at : at + step], epochs[at : at + step], seed)
        position = order.advance(position, count)


class Turns:
    """Lets the threads that read and that decode work one at a time, as long as neither waits for
    anything else.

    Both hold the GIL most of the time where records are small. Left alone, they would hand it over
    at every step of NumPy, which doubles the CPU time of small records. One that waits for a disk,
    or for other threads, keeps the other waiting for no longer than 5 ms a batch."""

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


def read_ahead(
    records: Records, batches: Iterable[Rows], ahead_bytes: int, turns: Turns
) -> Background[Delivery]:
    """Delivers `batches` in order. Holds up to ahead_bytes that are not yet taken, but at least one
    item of them.

    Iterating raises StorageError. It has no time limit; its consumer has one."""
    waiting = deque[list[Rows]]()

    def requests() -> Iterator[Group]:
        for group, num_bytes in _groups(records, batches, min(ahead_bytes // 4, GROUP_BYTES)):
            waiting.append(group)
            yield Group(np.concatenate([_real(rows) for rows in group]), num_bytes)

    reading = records.read(requests(), ahead_bytes)
    return Background(
        _deliveries(reading, waiting, turns),
        limit=lambda: ahead_bytes - reading.held_bytes,
        cost=lambda delivery: records.weigh(_real(delivery.rows)),
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
            # for each batch: otherwise a group of many batches is handed over while others are
            # decoded
            with turns():
                delivery = Delivery(rows, list(islice(left, len(_real(rows)))))
            yield delivery


def _groups(
    records: Records, batches: Iterable[Rows], most_bytes: int
) -> Iterator[tuple[list[Rows], int]]:
    """Batches to read together, and their bytes.

    The first group is the first of `batches`, so that it arrives early; groups then double up to 16
    MiB."""
    group = list[Rows]()
    group_bytes = target_bytes = 0
    for rows in batches:
        group.append(rows)
        group_bytes += records.weigh(_real(rows))
        if group_bytes >= target_bytes:
            yield group, group_bytes
            target_bytes = min(2 * group_bytes, most_bytes)
            group = []
            group_bytes = 0
    if group:
        yield group, group_bytes


DECODING = 2  # decoded batches that wait, or those that were decoded together
Batch = dict[str, np.ndarray]
T = TypeVar("T")
U = TypeVar("U")


class Batches(Iterator[Batch]):
    """The batches from a position on. `close` returns immediately, whatever its threads wait for.

    decode: makes the batches of what is read in one step. `next` raises StallError if a batch takes
    longer than stall_seconds. Any error closes it. After `count` batches `rest()` returns the next
    one and those that follow it; None continues here."""

    def __init__(
        self,
        reading: Background[T],
        decode: Callable[[T], Iterator[Batch]],
        stall_seconds: float,
        turns: Turns,
        together: int = 1,
        count: int = -1,
        rest: "Callable[[], tuple[Batch, Batches] | None]" = lambda: None,
    ) -> None:
        self._closed = False
        self._left = count
        self._rest = rest
        self._reading: Background[Any] = reading
        # The only time limit is here: one of `reading` would also count while no one waits, and
        # both could expire.
        self._decoded = Background(
            made_in_turns(reading, decode, turns),
            limit=max(DECODING, together),
            name="infeed-decode",
            stall_seconds=stall_seconds,
        )
        self._made: Background[Batch] | Batches = self._decoded
        # If dropped without close, a thread in a stalled `next(reading)` would keep it alive.
        weakref.finalize(self, reading.close).atexit = False

    def __next__(self) -> Batch:
        if not self._left and (rest := self._rest()):
            batch, self._made = rest
            self._left = -1
            self._reading.close()
            self._decoded.close()
            if self._closed:  # by another thread meanwhile
                self._made.close()
            return batch
        try:
            batch = next(self._made)
        except Exception:
            self.close()
            raise
        self._left -= 1
        return batch

    def close(self) -> None:
        """Ends the iteration. Threads end as soon as the disk and the ops return control."""
        self._closed = True
        self._reading.close()
        self._decoded.close()
        self._made.close()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for reading and then decoding to end, this long each. Returns whether both have."""
        return self._reading.join(timeout_seconds) & self._made.join(timeout_seconds)


# Per epoch, with threads. A worker starts in about a second, and small data may be all in memory.
LEAST_EPOCH_SECONDS = 10.0
# Per worker. Four threads decode photographs 3.6 times as fast as one, eight only 4.2 times: they
# wait for the GIL.
WORKER_CORES = 4


class Cost(NamedTuple):
    """What a record takes.

    seconds: of the clock, with the threads of this process. gil_share: the share of the time for
    which its ops hold the GIL; None if it is too cheap for threads."""

    seconds: float
    gil_share: float | None


def choose_workers(cores: int, rows: int, epoch_records: int, cost: Cost) -> int:
    """The number of worker processes; 0 means threads of this process.

    cores: that this process may use. rows: of this host in a batch. epoch_records: that this host
    makes in an epoch."""
    if epoch_records * cost.seconds < LEAST_EPOCH_SECONDS:
        return 0
    if cost.gil_share is None:
        workers = max(min(cores, 2), cores // WORKER_CORES)
    else:
        # In proportion to the share, which is measured in a few rows. A bound made 4 of 16 workers
        # for small PNGs in one of five runs, which gave a fifth of the images per second.
        workers = max(math.ceil(cores / WORKER_CORES), round(cores * cost.gil_share))
    return min(workers, rows) if workers > 1 else 0


def made_in_turns(
    reading: Iterable[T], make: Callable[[T], Iterator[U]], turns: Turns
) -> Iterator[U]:
    """The items that `make` returns for each delivery."""
    for delivery in reading:
        making = make(delivery)
        while True:
            with turns():
                item = next(making, None)
            if item is None:
                break
            yield item
