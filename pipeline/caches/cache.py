"""Records that are read from their source once, and later from memory or a local disk.

train_dataset and eval_dataset wrap their source with it; to share one cache among several inputs, wrap the source
yourself. Independent of orders and TensorFlow."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from pipeline.caches.disk import DiskStore
from pipeline.caches.ram import RamStore
from pipeline.errors import CorruptRecordError, OptionError
from pipeline.old_attributes import OldAttributes
from pipeline.sources.concatenated import ConcatenatedReading
from pipeline.sources.records import Group, Reading, Record, Records, as_records, fetch

Cache = str | os.PathLike[str]
Store = DiskStore | RamStore  # of records by number; what it holds may still be missing or damaged when it is read


def cached(records: Records, where: Cache, *, share: float = 1.0) -> "CachedRecords":
    """The same records; each is stored when it is first read, and read from the cache after that.

    where: "ram", or a directory on a local disk. A directory serves later runs and concurrent processes, too. Its
    folders are named by fingerprint, so changed data never meets an old cache. No command deletes old folders: remove
    them when no run uses them. share: the fraction of records that will be read.

    The size it may reach is logged first. Raises OptionError if that exceeds the free space, or, for a directory, if
    lengths and checksums are not known in advance; StorageError if the directory cannot be written."""
    records = as_records(records) or records
    if where == "ram":
        return CachedRecords(records, RamStore(records.info, share), (where, share))
    directory = os.fspath(where)
    if "://" in directory or (isinstance(where, str) and "/" not in directory):
        raise OptionError(
            f"cache={directory!r} is not known. Known: 'ram'; a directory on a local disk, with a slash in it; for "
            "eval_dataset also 'decoded'."
        )
    return CachedRecords(records, DiskStore(records.info, directory, share), (where, share))


class CachedRecords(OldAttributes):
    """The Records of a source, read through a store. Errors of the source are passed on, every time.

    info: that of the source. reopen: the arguments of `cached`. A pickled copy has its own store: the same folder, or
    an empty one in RAM."""

    def __init__(self, source: Records, store: Store, reopen: tuple[Cache, float]) -> None:
        self.source, self.store, self.info, self._reopen = source, store, source.info, reopen
        self.block_starts, self.weigh, self.where = source.block_starts, source.weigh, source.where

    def __reduce__(self) -> tuple[Any, ...]:
        return _cached_again, (self.source, *self._reopen)

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """See Records. Reads from the source what is not in the store."""
        if self.store.complete:
            return self._from_store(groups, ahead_bytes)
        return ConcatenatedReading((self._from_source, self._from_store), self._split_up, groups, ahead_bytes)

    def _split_up(self, group: Group) -> tuple[np.ndarray, list[Group]]:
        held = self.store.holds(group.record_ids)
        asked = [Group(group.record_ids[of], group.num_bytes) for of in (~held, held)]
        return held.astype(np.intp), asked

    def _from_source(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        return _Followed(self.source.read, groups, ahead_bytes, self._kept)

    def _from_store(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        return _Followed(self.store.read, groups, ahead_bytes, self._healed)

    def _kept(self, record_ids: np.ndarray, records: list[Record]) -> list[Record]:
        self.store.keep(record_ids, records)
        return records

    def _healed(self, record_ids: np.ndarray, records: list[Record]) -> list[Record]:
        """Rereads from the source what the store has lost."""
        lost = [i for i, record in enumerate(records) if isinstance(record, CorruptRecordError)]
        if lost:
            ids = record_ids[lost]
            for i, record in zip(lost, self._kept(ids, fetch(self.source, ids)), strict=True):
                records[i] = record
        return records


def _cached_again(records: Records, where: Cache, share: float) -> CachedRecords:
    return cached(records, where, share=share)


class _Followed:
    """A reading that passes each group's numbers and records through `then`."""

    def __init__(
        self,
        read: Callable[[Iterable[Group], int], Reading],
        groups: Iterable[Group],
        ahead_bytes: int,
        then: Callable[[np.ndarray, list[Record]], list[Record]],
    ) -> None:
        self._ids: deque[np.ndarray] = deque()
        self._then = then
        self._reading = read(self._noted(groups), ahead_bytes)

    @property
    def held_bytes(self) -> int:
        return self._reading.held_bytes

    def __iter__(self) -> Iterator[list[Record]]:
        for records in self._reading:
            yield self._then(self._ids.popleft(), records)

    def _noted(self, groups: Iterable[Group]) -> Iterator[Group]:
        for group in groups:
            self._ids.append(group.record_ids)
            yield group
