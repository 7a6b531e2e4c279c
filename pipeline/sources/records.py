"""The interface of every source: a numbered sequence of records that can be read in any order.

A DatasetInput reads through it; concatenated, sliced and cached records implement it, too. NumPy
only."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pipeline.description import Description, Renumbering, Source, joined, renumberings
from pipeline.errors import CorruptRecordError, OptionError
from pipeline.shards.schema import Labels, Schema
from pipeline.spec import Layout

__all__ = [
    "RECORD_OBJECT_BYTES",
    "ByteRange",
    "Group",
    "Proven",
    "ReadWhenDue",
    "Reading",
    "Record",
    "Records",
    "RecordsInfo",
    "as_records",
    "fetch",
    "intact",
    "weighed",
]

RECORD_OBJECT_BYTES = 250
"""Python's overhead per record in memory: most of what short records take."""
READ_AHEAD_BYTES = 256_000_000  # by default


Proven = tuple[bytes, int]
"""A record's bytes, and the crc32c computed from them. A NamedTuple takes 1 us more per record: to
make it, to read its fields, and for the garbage collector, which never lets go of it."""

Record = Proven | CorruptRecordError
"""A damaged record is returned as its error: the caller decides whether it is fatal."""


class Group(NamedTuple):
    """Records that are requested together."""

    record_ids: np.ndarray  # int64 [n], in any order, repeats allowed
    num_bytes: int  # of everything requested at that time; these records may be a part of it


Groups = Iterable[Group]
"""What is requested, in this order."""


class ByteRange(NamedTuple):
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


@dataclass(eq=False)
class ReadWhenDue:
    """A Reading of records that are in memory: each group is read when it is due, so held_bytes is
    0.

    read: from record ids to the records. groups: what to read, in this order."""

    held_bytes = 0

    read: Callable[[np.ndarray], list[Record]]
    groups: Groups

    def __iter__(self) -> Iterator[list[Record]]:
        return (self.read(group.record_ids) for group in self.groups)


class Column(Protocol):
    """A number per record: an array, or what can be indexed like one, with a slice or ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, ids: Any, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class RecordsInfo:
    """What is known of all records of a source before any is read.

    name: where they are, for messages.
    fingerprint: identifies the data: a copy has the same one, other records have another.
    num_records: at least 1.
    num_bytes: what all records take where they are stored.
    layout: what a record contains.
    labels: the class names: feature, base and names; None if none are stored with the data.
    crcs: uint32 [N], the crc32c that each record must have; None if not known before reading. Those
        of a large index may be damaged, until the record has been read.
    lengths: uint32 [N], bytes of each payload; None if not known before reading.
    source_starts: int64 [sources + 1], the first record of each concatenated source, then N.
        Default: [0, N], a single source.
    remote: whether reads wait for a network: a few large ones are then worth their memory.
    whole_files: number of files, if each must be read from its front; None if any record can be
        read directly. Such records are cheap only in long runs, so each host reads its own files
        and needs at least one.
    verify_command: the command, with all its arguments, that lists damaged records; None if there
        is none.
    totals: sums over all records that the manifest states, such as num_bytes of packed text.
    describe: finds the description, when it is needed; None: the features and class names, or what
        the `parts` have, are all there is.
    find_copies: finds how many of the records are also in each other split, see copies.
    find_crc_sum: finds crc_sum without adding up all crcs.
    parts: what is known of each source of concatenated records, with its first record; none of them
        has parts."""

    name: str
    fingerprint: str
    num_records: int
    num_bytes: int
    layout: Layout
    labels: Labels | None = None
    crcs: Column | None = None
    lengths: Column | None = None
    source_starts: np.ndarray = None  # pyright: ignore[reportAssignmentType] # see __post_init__
    remote: bool = False
    whole_files: int | None = None
    verify_command: str | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    describe: Callable[[], Description | None] | None = None
    find_copies: Callable[[], Mapping[str, int] | None] | None = None
    find_crc_sum: Callable[[], int] | None = None
    parts: Sequence[tuple[int, "RecordsInfo"]] = ()

    def __post_init__(self) -> None:
        if self.source_starts is None:
            object.__setattr__(self, "source_starts", np.array([0, self.num_records]))

    @property
    def crc_sum(self) -> int | None:
        """The sum of crcs modulo 2**32; None if they are not known."""
        if self.crcs is None:
            return None
        find = self.find_crc_sum or partial(sum_of_crcs, self.crcs, range(self.num_records))
        return find()

    @cached_property
    def sources(self) -> Sequence[Source]:
        """The sources with their descriptions; none unless all have one. Raises as description."""
        if not self.parts:
            return [Source(0, self.name, self.description)] if self.description else ()
        sources = [
            source._replace(start=start) for start, part in self.parts for source in part.sources
        ]
        return sources if len(sources) == len(self.parts) else ()

    @cached_property
    def renumberings(self) -> Mapping[str, Renumbering]:
        """From the numbers of classes in the records of several sources to those of the
        description, by feature, where they differ. OptionError if only some have names."""
        if len(self.parts) < 2 or self.description is None:
            return {}
        features = self.description.schema.features
        return renumberings(self.description, self.sources, features, {}, same_classes=True)

    def check_numbers(self) -> None:
        """OptionError if records do not store the numbers of the description."""
        for key in self.renumberings:
            raise OptionError(
                f"{self.name} number the classes of {key!r} differently, and a program that parses "
                "records gets the numbers that are stored. Batches of train_dataset and "
                "eval_dataset, and pipeline.grain.source, have one number per class."
            )

    def in_common(self, record: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The features of a record with the numbers of the description."""
        by = self.renumberings
        return {
            key: by[key](value, number)[()] if key in by else value for key, value in record.items()
        }

    @cached_property
    def copies(self) -> Mapping[str, int] | None:
        """How many of the records are also in each other split, by split; None if not known. Raises
        ManifestError."""
        return None if self.find_copies is None else self.find_copies()

    @cached_property
    def description(self) -> Description | None:
        """What gives the numbers in the records their meaning; None if their features are not
        known.

        Raises OptionError or SchemaError for files that are damaged, or sources that contradict
        each other."""
        if self.describe is not None:
            return self.describe()
        if self.parts:
            described = [source.description for source in self.sources]
            return replace(reduce(joined, described), schema=self.layout) if described else None
        if isinstance(self.layout, Schema) and not self.layout.opaque:
            return Description(self.layout, self.labels)
        return None


@runtime_checkable
class Records(Protocol):
    """Records 0..N-1 of one source. Threads may share it."""

    @property
    def info(self) -> RecordsInfo:
        """What is known of them before any is read."""
        ...

    def block_starts(self, block_records: int) -> range | np.ndarray:
        """int64, ascending, the first 0: where runs start that are cheap to read in one go. A range
        takes no memory."""
        ...

    def weigh(self, record_ids: np.ndarray) -> int:
        """Bytes that these records take in memory, at least approximately: payloads plus
        RECORD_OBJECT_BYTES each."""
        ...

    def read(self, groups: Groups, ahead_bytes: int) -> Reading:
        """The records of each group, in the order requested. A damaged record comes as an error
        with its location.

        ahead_bytes: how far beyond a group to look for neighbours that the same read can fetch.
        Iterating raises StorageError if bytes cannot be read."""
        ...

    def where(self, record_id: int) -> str:
        """The location of a record, for messages."""
        ...


class ReadDirectly:
    """The base of Records that can be read in any order, because all lengths are known."""

    info: RecordsInfo

    def block_starts(self, block_records: int) -> range:
        """See Records: reading may start at any record."""
        return range(0, self.info.num_records, block_records)

    def weigh(self, record_ids: np.ndarray) -> int:
        """See Records."""
        assert self.info.lengths is not None
        return int(self.info.lengths[record_ids].sum(dtype=np.int64)) + RECORD_OBJECT_BYTES * len(
            record_ids
        )


def sum_of_crcs(crcs: Column, which: range) -> int:
    """The sum modulo 2**32 of those of consecutive records."""
    return int(crcs[which.start : which.stop].sum(dtype=np.uint64)) % 2**32


def as_array(starts: range | np.ndarray) -> np.ndarray:
    """block_starts as int64 [n]."""
    if isinstance(starts, range):
        return np.arange(starts.start, starts.stop, starts.step)
    return starts


def weighed(records: Records, groups: Iterable[np.ndarray]) -> Iterator[Group]:
    """Groups that contain only these records."""
    return (Group(ids, records.weigh(ids)) for ids in groups)


def fetch(records: Records, record_ids: np.ndarray) -> list[Record]:
    """Reads these records now."""
    (group,) = records.read(weighed(records, [record_ids]), 0)
    return group


def fetch_payloads(records: Records, record_ids: Sequence[int]) -> list[bytes]:
    """Reads the payloads of these records now; raises CorruptRecordError if one is damaged."""
    return [intact(record)[0] for record in fetch(records, np.array(record_ids, np.int64))]


def fetch_payload(records: Records, record_id: int) -> bytes:
    """Reads the payload of this record now; raises CorruptRecordError if it is damaged."""
    return fetch_payloads(records, [record_id])[0]


def intact(record: Record) -> Proven:
    """The record; raises CorruptRecordError if it is damaged."""
    if isinstance(record, CorruptRecordError):
        raise record
    return record


def as_records(data: Any) -> Records | None:
    """`data`, if they are Records; else None."""
    methods = (getattr(data, name, None) for name in ("block_starts", "weigh", "read", "where"))
    return data if all(map(callable, methods)) and hasattr(data, "info") else None
