"""Records of several sources one behind the other, or parts of them: records again, with numbers of their own.

open_dataset joins what it is given. Nothing is read here but through the sources."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

import numpy as np

from pipeline.shards.errors import EmptySplitError, SchemaError
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.records import Group, Reading, Record, Records, known_lengths, verify_command
from pipeline.spec import Layout

__all__ = ["Joined", "JoinedReading", "Part", "joined", "whole"]


class Part:
    """Consecutive records of a source."""

    def __init__(self, records: Records, which: range) -> None:
        self.records, self.which = records, which

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its source."""
        return len(self.which) == self.records.num_records


def whole(records: Records) -> Part:
    """All of a source."""
    return Part(records, range(records.num_records))


def joined(parts: Sequence[Part]) -> Records:
    """The records of all parts, in order; of one whole part those of its source, as they are."""
    if len(parts) == 1 and parts[0].is_whole:
        return parts[0].records
    return Joined(parts)


class Joined:
    """Parts one behind the other: see Records. Record g is the one that stands g-th.

    Of the features those are left that all parts have alike. SchemaError if there is none."""

    def __init__(self, parts: Sequence[Part]) -> None:
        if not parts:
            raise EmptySplitError("no dataset is given, so there is nothing to read. Give one at least.")
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part.which) for part in parts)])  # of each part, and N
        self.num_records = int(self.starts[-1])
        self.layout = _common([part.records for part in parts])
        self.name = " + ".join(_name(part) for part in parts)
        lines = "".join(f"{p.records.fingerprint} {p.which.start} {p.which.stop}\n" for p in parts)
        self.fingerprint = blake2b(lines.encode(), digest_size=16).hexdigest()
        self.remote = any(part.records.remote for part in parts)
        self.crcs = self._of_parts([part.records.crcs for part in self.parts])

    @property
    def num_bytes(self) -> int:
        """What all parts take; of a part of a source its share."""
        return sum(p.records.num_bytes * len(p.which) // p.records.num_records for p in self.parts)

    @property
    def lengths(self) -> np.ndarray | None:
        """uint32 [N], where they are known of every part."""
        return self._of_parts([known_lengths(part.records) for part in self.parts])

    @property
    def whole_files(self) -> int | None:
        """Of the part that has the fewest."""
        return min((p.records.whole_files for p in self.parts if p.records.whole_files is not None), default=None)

    @property
    def verify_command(self) -> str | None:
        """See Verifiable: those of the parts."""
        commands = dict.fromkeys(verify_command(part.records) for part in self.parts)
        return " and ".join(command for command in commands if command) or None

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records: those of the parts, and where each begins."""
        starts = []
        for part, first in zip(self.parts, self.starts.tolist(), strict=False):
            inside = part.records.block_starts(block_records) - part.which.start
            starts += [[first], first + inside[(inside > 0) & (inside < len(part.which))]]
        return np.concatenate(starts).astype(np.int64)

    def weigh(self, record_ids: np.ndarray) -> int:
        """See Records."""
        owners = self._owners(record_ids)
        return sum(p.records.weigh(self._within(i, record_ids[owners == i])) for i, p in enumerate(self.parts))

    def read(self, groups: Iterable[Group], ahead_bytes: int) -> Reading:
        """See Records."""
        if len(self.parts) == 1:
            return self.parts[0].records.read((Group(self._within(0, ids), size) for ids, size in groups), ahead_bytes)
        return JoinedReading([part.records.read for part in self.parts], self._split_up, groups, ahead_bytes)

    def where(self, record_id: int) -> str:
        """See Records."""
        (owner,) = self._owners(np.array([record_id])).tolist()
        return self.parts[owner].records.where(int(self._within(owner, np.array([record_id]))[0]))

    def _split_up(self, group: Group) -> tuple[np.ndarray, list[Group]]:
        owners = self._owners(group.record_ids)
        asked = (self._within(i, group.record_ids[owners == i]) for i in range(len(self.parts)))
        return owners, [Group(ids, group.num_bytes) for ids in asked]

    def _owners(self, record_ids: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, record_ids, side="right") - 1

    def _within(self, part: int, record_ids: np.ndarray) -> np.ndarray:
        return record_ids + (self.parts[part].which.start - self.starts[part])

    def _of_parts(self, columns: Sequence[np.ndarray | None]) -> np.ndarray | None:
        """A column of all records, of those of the sources, where all have it."""
        rows = zip(columns, self.parts, strict=True)
        known = [column[part.which.start : part.which.stop] for column, part in rows if column is not None]
        return np.concatenate(known) if len(known) == len(self.parts) else None


class JoinedReading:
    """What several reads give, put together again; all look equally far ahead in the one sequence of groups.

    split_up: a group -> which read each record is of, and what is asked of each. It is called once a group, when the
    first of the reads comes to see it."""

    def __init__(
        self,
        reads: Sequence[Callable[[Iterable[Group], int], Reading]],
        split_up: Callable[[Group], tuple[np.ndarray, list[Group]]],
        groups: Iterable[Group],
        ahead_bytes: int,
    ) -> None:
        self._split_up, self._groups = split_up, iter(groups)
        self._owners: deque[np.ndarray] = deque()
        self._asked: list[deque[Group]] = [deque() for _ in reads]
        self._readings = [read(self._asked_of(i), ahead_bytes) for i, read in enumerate(reads)]

    @property
    def held_bytes(self) -> int:
        """See Reading."""
        return sum(reading.held_bytes for reading in self._readings)

    def __iter__(self) -> Iterator[list[Record]]:
        # Not zip with strict: the first to end says that all have.
        for found in zip(*self._readings, strict=False):
            records = [iter(of_read) for of_read in found]
            yield [next(records[owner]) for owner in self._owners.popleft().tolist()]

    def _asked_of(self, read: int) -> Iterator[Group]:
        while True:
            if not self._asked[read]:
                group = next(self._groups, None)
                if group is None:
                    return
                owners, asked = self._split_up(group)
                self._owners.append(owners)
                for queue, group_of_read in zip(self._asked, asked, strict=True):
                    queue.append(group_of_read)
            yield self._asked[read].popleft()


def _name(part: Part) -> str:
    return part.records.name + ("" if part.is_whole else f"[{part.which.start}:{part.which.stop}]")


def _common(sources: Sequence[Records]) -> Layout:
    """What is inside every record: of features, those that are alike in all sources."""
    first, *others = sources
    layout = first.layout
    for other in others:
        if isinstance(layout, Schema) and isinstance(other.layout, Schema):
            layout = _shared(layout, other.layout)
        elif layout != other.layout:
            layout = None
        if layout is None:
            raise SchemaError(
                f"the records of {first.name} and of {other.name} have nothing in common: {first.layout} and "
                f"{other.layout}. Join datasets that were made alike."
            )
    return layout


def _shared(one: Schema, other: Schema) -> Schema | None:
    if one.opaque and other.opaque:
        return one
    features = {
        key: _either(feature, other.features[key])
        for key, feature in one.features.items()
        if key in other.features and _alike(feature, other.features[key])
    }
    return Schema(one.name, features) if features else None


def _alike(one: Feature, other: Feature) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def _either(one: Feature, other: Feature) -> Feature:
    optional, content = one.optional or other.optional, one.content if one.content == other.content else "raw"
    return Feature(one.dtype, one.shape, optional, content, one.doc)
