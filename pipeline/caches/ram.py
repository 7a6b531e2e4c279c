"""Payloads in memory: what a RAM cache keeps. pipeline.caches.cache fills and reads it. NumPy only."""

import threading
from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.caches.memory import room_for_a_cache
from pipeline.logs import logger
from pipeline.shards.errors import OptionError
from pipeline.shards.sizes import format_bytes
from pipeline.sources.records import Group, Proven, Record, Records

__all__ = ["RamStore"]

RECORD_BYTES = 64  # beside its payload, of each record: the object, its place in the list, its checksum

log = logger("pipeline")


class RamStore:
    """Keeps the payloads of one source, from their first arrival to the end of the process. Threads may share it.

    share: of the records that will be asked for. OptionError if they are larger than the memory that is free.
    Sources whose records turn out larger than they said (compressed ones) are kept as far as that memory goes."""

    def __init__(self, records: Records, share: float) -> None:
        needed = int(share * (records.num_bytes + RECORD_BYTES * records.num_records))
        self._room = limit = room_for_a_cache()
        log.info("%s: caching up to %s in RAM", records.name, format_bytes(needed))
        if needed > limit:
            raise OptionError(
                f"cache='ram' needs {format_bytes(needed)} for {records.name}; {format_bytes(limit)} of memory are "
                "available. Cache in a directory on a local disk (cache='/local/dir'), or take less data, or leave "
                "the cache out."
            )
        self._name = records.name
        self._payloads: list[bytes | None] = [None] * records.num_records
        self._crcs = np.zeros(records.num_records, np.uint32)
        self._kept = np.zeros(records.num_records, bool)
        self._lock = threading.Lock()

    def holds(self, record_ids: np.ndarray) -> np.ndarray:
        """bool [n]: which of these are kept."""
        return self._kept[record_ids]

    @property
    def complete(self) -> bool:
        """Whether every record is kept."""
        return bool(self._kept.all())

    def keep(self, record_ids: np.ndarray, records: Iterable[Record]) -> None:
        """Keeps those that are whole."""
        with self._lock:
            for record_id, record in zip(record_ids.tolist(), records, strict=True):
                if isinstance(record, Proven) and not self._kept[record_id] and self._makes_room(len(record.payload)):
                    self._payloads[record_id] = record.payload
                    self._crcs[record_id] = record.crc
                    self._kept[record_id] = True  # last: other threads go by it without the lock

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> "_RamReading":
        """Groups of records that are held when their turn comes."""
        del ahead_bytes
        return _RamReading(self._payloads, self._crcs, groups)

    def _makes_room(self, payload_bytes: int) -> bool:
        left = self._room - payload_bytes - RECORD_BYTES
        if left < 0 <= self._room:
            log.warning("%s: the records are larger than expected; the RAM cache is full, others are read", self._name)
            self._room = -1
        elif left >= 0:
            self._room = left
        return left >= 0


class _RamReading:
    """See Reading. What the store keeps is not held by it."""

    held_bytes = 0

    def __init__(self, payloads: list[bytes | None], crcs: np.ndarray, groups: Iterable[Group]) -> None:
        self._payloads, self._crcs, self._groups = payloads, crcs, groups

    def __iter__(self) -> Iterator[list[Record]]:
        for group in self._groups:
            yield [self._record(i, crc) for i, crc in zip(*self._columns(group.record_ids), strict=True)]

    def _columns(self, ids: np.ndarray) -> tuple[list[int], list[int]]:
        return ids.tolist(), self._crcs[ids].tolist()

    def _record(self, record_id: int, crc: int) -> Proven:
        payload = self._payloads[record_id]
        assert payload is not None
        return Proven(payload, crc)
