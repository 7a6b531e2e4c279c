"""The store of a RAM cache: payloads in memory. pipeline.caches.cache fills and reads it. NumPy only."""

import threading
from collections.abc import Iterable

import numpy as np

from pipeline.caches.memory import room_for_a_cache
from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.sizes import format_bytes
from pipeline.sources.records import Group, Proven, ReadWhenDue, Record, RecordsInfo

__all__ = ["RamStore"]

RECORD_BYTES = 64  # per record besides the payload: the object, its place in the list, its checksum

log = logger("pipeline")


class RamStore:
    """Stores the payloads of one source until the process ends. Threads may share it.

    share: the fraction of records that will be read. OptionError if they exceed the free memory. If records turn out
    larger than expected (compressed ones), it stores as many as fit in that memory."""

    def __init__(self, records: RecordsInfo, share: float) -> None:
        needed = int(share * (records.num_bytes + RECORD_BYTES * records.num_records))
        self._room = limit = room_for_a_cache()
        log.info("%s: caching up to %s in RAM", records.name, format_bytes(needed))
        if needed > limit:
            raise OptionError(
                f"cache='ram' needs {format_bytes(needed)} for {records.name}; {format_bytes(limit)} of memory are "
                "available. Cache on a local disk (cache='/local/dir'), or take less data, or leave the cache out."
            )
        self._name = records.name
        self._payloads = [b""] * records.num_records
        self._crcs = np.zeros(records.num_records, np.uint32)
        self._kept = np.zeros(records.num_records, bool)
        self._lock = threading.Lock()

    def holds(self, record_ids: np.ndarray) -> np.ndarray:
        """bool [n]: which of these are stored."""
        return self._kept[record_ids]

    @property
    def complete(self) -> bool:
        """Whether every record is stored."""
        return bool(self._kept.all())

    def keep(self, record_ids: np.ndarray, records: Iterable[Record]) -> None:
        """Stores the undamaged ones."""
        with self._lock:
            for record_id, record in zip(record_ids.tolist(), records, strict=True):
                if isinstance(record, Proven) and not self._kept[record_id] and self._makes_room(len(record.payload)):
                    self._payloads[record_id] = record.payload
                    self._crcs[record_id] = record.crc
                    self._kept[record_id] = True  # last, because other threads read it without the lock

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> ReadWhenDue:
        """See Records. Every record must be stored when its turn comes."""
        del ahead_bytes
        return ReadWhenDue(self._stored, groups)

    def _stored(self, ids: np.ndarray) -> list[Record]:
        payloads = map(self._payloads.__getitem__, ids.tolist())
        return list(map(Proven, payloads, self._crcs[ids].tolist()))

    def _makes_room(self, payload_bytes: int) -> bool:
        left = self._room - payload_bytes - RECORD_BYTES
        if left < 0 <= self._room:
            log.warning("%s: records are larger than expected; the RAM cache is full, others are reread", self._name)
            self._room = -1
        elif left >= 0:
            self._room = left
        return left >= 0
