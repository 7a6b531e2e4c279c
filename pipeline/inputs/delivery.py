"""The reading half of a DatasetInput: a thread that reads the records of one batch after another, ahead of their use.

Batches are read in groups, so that one request reads neighbouring records. Damaged records are passed on."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pipeline.background import Background
from pipeline.orders.order import Rows
from pipeline.sources.records import RECORD_OBJECT_BYTES, Group, Proven, Reading, Record, Records

__all__ = ["Delivery", "read_ahead"]

GROUP_BYTES = 16 * 1024**2  # read together


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


def read_ahead(records: Records, batches: Iterable[Rows], ahead_bytes: int) -> Background[Delivery]:
    """Delivers `batches` in order. Holds up to ahead_bytes that are not yet taken, but at least one batch.

    Iterating raises StorageError. It has no time limit; its consumer has one."""
    waiting: deque[list[Rows]] = deque()

    def wanted() -> Iterator[Group]:
        for group, num_bytes in _groups(records, batches, min(ahead_bytes // 4, GROUP_BYTES)):
            waiting.append(group)
            yield Group(np.concatenate([_real(rows) for rows in group]), num_bytes)

    reading = records.read(wanted(), ahead_bytes)
    return Background(
        _deliveries(reading, waiting),
        limit=lambda: ahead_bytes - reading.held_bytes,
        cost=lambda delivery: delivery.num_bytes,
        name="infeed-read",
    )


def _real(rows: Rows) -> np.ndarray:
    return rows.record_ids[rows.record_ids >= 0]


def _deliveries(reading: Reading, waiting: deque[list[Rows]]) -> Iterator[Delivery]:
    for records in reading:
        left = iter(records)
        for rows in waiting.popleft():
            yield Delivery(rows, list(islice(left, int((rows.record_ids >= 0).sum()))))


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
