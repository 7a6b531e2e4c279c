"""Records that are read from their source once and then from memory or a local disk.

train_dataset and eval_dataset wrap their source with it; whoever wants several inputs to share one cache wraps it
first. It knows neither order nor TensorFlow."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from pipeline.caches.disk import DiskStore
from pipeline.caches.ram import RamStore
from pipeline.shards.errors import CorruptRecordError, OptionError
from pipeline.sources.joined import ConcatenatedReading
from pipeline.sources.records import (
    Group,
    Reading,
    Record,
    Records,
    fetch,
)

__all__ = ["Cache", "CachedRecords", "Store", "cached"]

Cache = str | os.PathLike[str]


class Store(Protocol):
    """Where records are kept, by their number. Threads may share it."""

    @property
    def complete(self) -> bool:
        """Whether every record is believed to be there."""
        ...

    def holds(self, record_ids: np.ndarray) -> np.ndarray:
        """bool [n]: which of these are believed to be there."""
        ...

    def keep(self, record_ids: np.ndarray, records: Sequence[Record]) -> None:
        """Keeps those that are whole, if it can."""
        ...

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """Records that are believed to be there. One that is not comes as a CorruptRecordError."""
        ...


def cached(records: Records, where: Cache, *, share: float = 1.0) -> "CachedRecords":
    """The records, each kept on its way from the source, and taken from there when it is asked for again.

    where: "ram", or a directory on a local disk. That keeps them for later runs, and for other processes at the same
    time, in a folder named by the fingerprint: changed data never meet an old cache. No command deletes old ones:
    remove the folder when no run uses it. share: of the records that will be asked for.

    What it may take is logged first. Raises OptionError if that is more than is free, and for a directory if lengths
    and checksums of the records are not known beforehand; StorageError if the directory cannot be written."""
    if where == "ram":
        return CachedRecords(records, RamStore(records, share))
    directory = os.fspath(where)
    if "://" in directory or (isinstance(where, str) and "/" not in directory):
        raise OptionError(
            f"cache={directory!r} is not known. Known: 'ram'; a directory on a local disk, with a slash in it; for "
            "eval_dataset also 'decoded'."
        )
    return CachedRecords(records, DiskStore(records, directory, share))


class CachedRecords:
    """Records of a source that go through a store: see Records. Errors of the source come as they are, every time."""

    def __init__(self, source: Records, store: Store) -> None:
        self.source, self.store = source, store
        self.name, self.fingerprint, self.layout = source.name, source.fingerprint, source.layout
        self.num_records, self.num_bytes, self.crcs = source.num_records, source.num_bytes, source.crcs
        self.remote, self.whole_files = source.remote, source.whole_files
        self.lengths, self.source_starts = source.lengths, source.source_starts
        self.verify_command = source.verify_command

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records."""
        return self.source.block_starts(block_records)

    def weigh(self, record_ids: np.ndarray) -> int:
        """See Records."""
        return self.source.weigh(record_ids)

    def where(self, record_id: int) -> str:
        """See Records."""
        return self.source.where(record_id)

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """See Records. The source is asked for what is not in the store."""
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
        """What the store had lost is read again."""
        lost = [i for i, record in enumerate(records) if isinstance(record, CorruptRecordError)]
        if lost:
            ids = record_ids[lost]
            for i, record in zip(lost, self._kept(ids, fetch(self.source, ids)), strict=True):
                records[i] = record
        return records


class _Followed:
    """A reading of which every group's records pass through `then`, together with their numbers."""

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
