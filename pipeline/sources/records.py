"""The interface of every source: a numbered sequence of records that can be read in any order.

A DatasetInput reads through it; concatenated, sliced and cached records implement it, too. NumPy only."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from pipeline.errors import CorruptRecordError
from pipeline.shards.schema import Labels
from pipeline.spec import Layout

__all__ = [
    "RECORD_OBJECT_BYTES",
    "Group",
    "Place",
    "Proven",
    "Reading",
    "Record",
    "Records",
    "fetch",
    "intact",
    "totals_of",
    "weighed",
]

RECORD_OBJECT_BYTES = 250
"""Python's overhead per record in memory: most of what short records take."""


class Proven(NamedTuple):
    """A record's bytes, and the crc32c computed from them."""

    payload: bytes
    crc: int


Record = Proven | CorruptRecordError
"""A damaged record is returned as its error: the caller decides whether it is fatal."""


class Group(NamedTuple):
    """Records that are requested together."""

    record_ids: np.ndarray  # int64 [n], in any order, repeats allowed
    num_bytes: int  # of everything requested at that time; these records may be a part of it


class Place(NamedTuple):
    """Where the bytes of a payload are."""

    path: str
    offset: int
    length: int
    crc: int | None  # crc32c that they must have; None if not known


class Reading(Protocol):
    """The records of each group, in the order requested. Iterate once, in one thread."""

    @property
    def held_bytes(self) -> int:
        """Bytes of records that have been requested or are waiting to be used."""
        ...

    def __iter__(self) -> Iterator[list[Record]]: ...


@runtime_checkable
class Records(Protocol):
    """Records 0..N-1 of one source. Threads may share it."""

    @property
    def name(self) -> str:
        """Where the records are, for messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies the data: a copy has the same fingerprint, other records have another."""
        ...

    @property
    def num_records(self) -> int:
        """N, at least 1."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that all records take where they are stored."""
        ...

    @property
    def layout(self) -> Layout:
        """What a record contains."""
        ...

    @property
    def labels(self) -> Labels | None:
        """The class names: feature, base and names; None if none are stored with the data."""
        ...

    @property
    def crcs(self) -> np.ndarray | None:
        """uint32 [N]: the crc32c that each record must have; None if not known before reading."""
        ...

    @property
    def lengths(self) -> np.ndarray | None:
        """uint32 [N]: bytes of each payload; None if not known before reading."""
        ...

    @property
    def source_starts(self) -> np.ndarray:
        """int64 [sources + 1]: the first record of each concatenated source, then N. [0, N] for a single source."""
        ...

    @property
    def remote(self) -> bool:
        """Whether reads wait for a network: a few large ones are then worth their memory."""
        ...

    @property
    def whole_files(self) -> int | None:
        """Number of files, if each must be read from its front; None if any record can be read directly.

        Such records are cheap only in long runs, so each host reads its own files and needs at least one."""
        ...

    @property
    def verify_command(self) -> str | None:
        """The command, with all its arguments, that lists damaged records; None if there is none."""
        ...

    def block_starts(self, block_records: int) -> np.ndarray:
        """int64, ascending, the first 0: where runs start that are cheap to read in one go."""
        ...

    def weigh(self, record_ids: np.ndarray) -> int:
        """Bytes that these records take in memory, at least approximately: payloads plus RECORD_OBJECT_BYTES each."""
        ...

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """The records of each group, in the order requested. A damaged record comes as an error with its location.

        ahead_bytes: how far beyond a group to look for neighbours that the same read can fetch. Iterating raises
        StorageError if bytes cannot be read."""
        ...

    def where(self, record_id: int) -> str:
        """The location of a record, for messages."""
        ...


def weighed(records: Records, groups: Iterable[np.ndarray]) -> Iterator[Group]:
    """Groups that contain only these records."""
    return (Group(ids, records.weigh(ids)) for ids in groups)


def fetch(records: Records, record_ids: np.ndarray) -> list[Record]:
    """Reads these records now."""
    (found,) = records.read(weighed(records, [record_ids]), 0)
    return found


def intact(record: Record) -> Proven:
    """The record; raises CorruptRecordError if it is damaged."""
    if isinstance(record, CorruptRecordError):
        raise record
    return record


def totals_of(records: Records) -> Mapping[str, int]:
    """Sums over all records that the manifest states, such as num_bytes of packed text; {} if none are known.

    Records may have them as an attribute `totals`."""
    return getattr(records, "totals", {})
