"""What every source of records looks like from above: a numbered sequence, of which any records can be asked for.

An Input reads through it, and joined, sliced and cached records are records again. NumPy only."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from pipeline.shards.errors import CorruptRecordError
from pipeline.spec import Layout

__all__ = [
    "RECORD_OBJECT_BYTES",
    "Composed",
    "Group",
    "Measured",
    "Proven",
    "Reading",
    "Record",
    "Records",
    "Verifiable",
    "fetch",
    "intact",
    "known_lengths",
    "source_starts",
    "verify_command",
    "weighed",
]

RECORD_OBJECT_BYTES = 250  # what a record in sight takes beside its payload: of short ones, most of it


class Proven(NamedTuple):
    """A record's bytes, and their crc32c as it was found to be."""

    payload: bytes
    crc: int


Record = Proven | CorruptRecordError  # who asked decides whether one damaged record ends everything


class Group(NamedTuple):
    """Records that are asked for together."""

    record_ids: np.ndarray  # int64 [n], in any order, repeats allowed
    num_bytes: int  # of all that is asked for at that time; these may be a part of it


class Reading(Protocol):
    """What a read gives: for each group, its records in the order asked for. Iterate once, in one thread."""

    @property
    def held_bytes(self) -> int:
        """Of records that are asked for, or wait for their use."""
        ...

    def __iter__(self) -> Iterator[list[Record]]: ...


class Records(Protocol):
    """Records 0..N-1 of one source. Threads may share it."""

    @property
    def name(self) -> str:
        """Where they are, for messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for a copy, another one for other records."""
        ...

    @property
    def num_records(self) -> int:
        """N, at least 1."""
        ...

    @property
    def num_bytes(self) -> int:
        """What all of them take where they are kept."""
        ...

    @property
    def layout(self) -> Layout:
        """What is inside a record."""
        ...

    @property
    def crcs(self) -> np.ndarray | None:
        """uint32 [N]: the crc32c that each record is known to have; None where that is known of no record."""
        ...

    @property
    def remote(self) -> bool:
        """Whether reads wait for a network: then few large ones are worth the memory that they take."""
        ...

    @property
    def whole_files(self) -> int | None:
        """Of how many files no one can be entered in its middle; None where any record can be read at once.

        Such records come cheap only in long runs: a host reads files of its own, so there must be enough of them."""
        ...

    def block_starts(self, block_records: int) -> np.ndarray:
        """int64, ascending, the first 0: where runs begin that are cheap to read in one go."""
        ...

    def weigh(self, record_ids: np.ndarray) -> int:
        """How many bytes these records take in memory, at least about: payloads, and RECORD_OBJECT_BYTES of each."""
        ...

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """The records of each group, as asked for. A damaged one comes as the error that names its place.

        ahead_bytes: how far beyond a group to look for neighbours that one read can bring along. Iterating raises
        StorageError when bytes cannot be read."""
        ...

    def where(self, record_id: int) -> str:
        """The place of a record, for messages."""
        ...


@runtime_checkable
class Measured(Protocol):
    """Records that know, before any is read, how long each is."""

    @property
    def lengths(self) -> np.ndarray | None:
        """uint32 [N]: bytes of each payload; None where some is not known after all."""
        ...


def known_lengths(records: Records) -> np.ndarray | None:
    """uint32 [N]: bytes of each payload, if they are known."""
    return records.lengths if isinstance(records, Measured) else None


@runtime_checkable
class Verifiable(Protocol):
    """Records of which a command can tell the damaged ones."""

    @property
    def verify_command(self) -> str | None:
        """It, with all its arguments; None where there is none after all."""
        ...


def verify_command(records: Records) -> str | None:
    """The command that names damaged records, if there is one."""
    return records.verify_command if isinstance(records, Verifiable) else None


@runtime_checkable
class Composed(Protocol):
    """Records that are of several sources, one behind the other."""

    @property
    def starts(self) -> np.ndarray:
        """int64 [sources + 1]: the number of each source's first record, and N."""
        ...


def source_starts(records: Records) -> np.ndarray:
    """int64 [sources + 1]: the number of each source's first record, and N."""
    return records.starts if isinstance(records, Composed) else np.array([0, records.num_records])


def weighed(records: Records, groups: Iterable[np.ndarray]) -> Iterator[Group]:
    """Groups of nothing but these records."""
    return (Group(ids, records.weigh(ids)) for ids in groups)


def fetch(records: Records, record_ids: np.ndarray) -> list[Record]:
    """These records, now."""
    (found,) = records.read(weighed(records, [record_ids]), 0)
    return found


def intact(record: Record) -> Proven:
    """The record, if it is one; else raises what it is."""
    if isinstance(record, CorruptRecordError):
        raise record
    return record
