"""Records of several sources, or parts of them, concatenated: Records again, numbered from 0.

open_dataset concatenates what it is given. All reading goes through the sources."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from pipeline.description import joined_labels
from pipeline.errors import EmptySplitError, SchemaError
from pipeline.shards.naming import hex_digest
from pipeline.shards.schema import Schema
from pipeline.sources.merged_schemas import merged_feature
from pipeline.sources.records import (
    Column,
    Group,
    Groups,
    Reading,
    Record,
    Records,
    RecordsInfo,
    as_array,
    sum_of_crcs,
)
from pipeline.spec import Layout


class Part:
    """Consecutive records of a source; None means all."""

    def __init__(self, records: Records, which: range | None = None) -> None:
        self.records = records
        self.which = range(self.info.num_records) if which is None else which

    @property
    def info(self) -> RecordsInfo:
        """What is known of the source."""
        return self.records.info

    @property
    def is_whole(self) -> bool:
        """Whether the part is the complete source."""
        return len(self.which) == self.info.num_records


def concatenated(parts: Sequence[Part]) -> Records:
    """The records of all parts, in order; a single complete source is returned unchanged."""
    if len(parts) == 1 and parts[0].is_whole:
        return parts[0].records
    return Concatenated(parts)


class Concatenated:
    """Parts of sources, concatenated in order: see Records. shifts: from a record's number here to
    that in its source, by part.

    Of the features, only those that all parts share are kept. SchemaError if there is none. Classes
    have the numbers of the first part; those that it lacks follow."""

    def __init__(self, parts: Sequence[Part]) -> None:
        if not parts:
            raise EmptySplitError(
                "there are no datasets, so there is nothing to read. Give at least one."
            )
        self.parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part.which) for part in parts)])
        self.shifts = [
            part.which.start - start
            for part, start in zip(parts, self._starts.tolist(), strict=False)
        ]
        sources = [part.info for part in parts]
        lines = "".join(
            f"{part.info.fingerprint} {part.which.start} {part.which.stop}\n" for part in parts
        )
        commands = dict.fromkeys(source.verify_command for source in sources)
        whole_files = [source.whole_files for source in sources if source.whole_files is not None]
        # the sums of the totals that all parts state
        totals, *others = [part.info.totals if part.is_whole else {} for part in parts]
        for other in others:
            totals = {name: total + other[name] for name, total in totals.items() if name in other}
        self.info = RecordsInfo(
            name=" + ".join(map(_name, parts)),
            fingerprint=hex_digest(lines.encode()),
            num_records=int(self._starts[-1]),
            # A part counts its share of the source's bytes.
            num_bytes=sum(
                part.info.num_bytes * len(part.which) // part.info.num_records for part in parts
            ),
            layout=_common(sources),
            labels=reduce(joined_labels, [source.labels for source in sources]),
            crcs=_column([(part.info.crcs, part.which) for part in parts]),
            lengths=_column([(part.info.lengths, part.which) for part in parts]),
            source_starts=self._starts,
            remote=any(source.remote for source in sources),
            whole_files=min(whole_files, default=None),
            verify_command=" and ".join(filter(None, commands)) or None,
            totals=totals,
            find_crc_sum=partial(_crc_sum, self.parts),
            parts=[
                (min(max(start, part.which.start), part.which.stop) - shift, source)
                for part, shift in zip(self.parts, self.shifts, strict=True)
                for start, source in part.info.parts or [(0, part.info)]
            ],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Concatenated, (self.parts,)

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records: those of the parts, and the start of each part."""
        starts = []
        for part, first in zip(self.parts, self._starts.tolist(), strict=False):
            inside = as_array(part.records.block_starts(block_records)) - part.which.start
            starts += [[first], first + inside[(inside > 0) & (inside < len(part.which))]]
        return np.concatenate(starts).astype(np.int64)

    def weigh(self, record_ids: np.ndarray) -> int:
        _, ids_of_parts = self._divided(record_ids)
        return sum(
            part.records.weigh(ids) for part, ids in zip(self.parts, ids_of_parts, strict=True)
        )

    def read(self, groups: Groups, ahead_bytes: int) -> Reading:
        return ConcatenatedReading(
            [part.records.read for part in self.parts], self._split_up, groups, ahead_bytes
        )

    def where(self, record_id: int) -> str:
        (owner,), ids_of_parts = self._divided(np.array([record_id]))
        return self.parts[owner].records.where(ids_of_parts[owner].item())

    def _split_up(self, group: Group) -> tuple[np.ndarray, list[Group]]:
        owners, ids_of_parts = self._divided(group.record_ids)
        return owners, [Group(ids, group.num_bytes) for ids in ids_of_parts]

    def _divided(self, record_ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """The part of each record, and the numbers of each part's records in its source."""
        owners = np.searchsorted(self._starts, record_ids, side="right") - 1
        return owners, [
            record_ids[owners == number] + shift for number, shift in enumerate(self.shifts)
        ]


class ConcatenatedReading:
    """Several readings combined into one; all look equally far ahead in the one sequence of groups.

    split_up: a group -> the index of each record's reading, and the group to request from each
    reading. It is called once per group, when the first reading reaches that group."""

    def __init__(
        self,
        reads: Sequence[Callable[[Groups, int], Reading]],
        split_up: Callable[[Group], tuple[np.ndarray, list[Group]]],
        groups: Groups,
        ahead_bytes: int,
    ) -> None:
        self._split_up = split_up
        self._groups = iter(groups)
        self._owners = deque[np.ndarray]()
        self._requests: list[deque[Group]] = [deque() for _ in reads]
        self._readings = [read(self._requested(i), ahead_bytes) for i, read in enumerate(reads)]

    @property
    def held_bytes(self) -> int:
        return sum(reading.held_bytes for reading in self._readings)

    def __iter__(self) -> Iterator[list[Record]]:
        # Not strict: when the first reading ends, all have ended.
        for groups in zip(*self._readings, strict=False):
            records = [iter(of_read) for of_read in groups]
            yield [next(records[owner]) for owner in self._owners.popleft().tolist()]

    def _requested(self, read: int) -> Iterator[Group]:
        while True:
            if not self._requests[read]:
                group = next(self._groups, None)
                if group is None:
                    return
                owners, groups_of_reads = self._split_up(group)
                self._owners.append(owners)
                for queue, group_of_read in zip(self._requests, groups_of_reads, strict=True):
                    queue.append(group_of_read)
            yield self._requests[read].popleft()


class _Joined:
    """A Column for all records. Those of the sources stay where they are: in mapped files."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._starts = np.cumsum([0, *map(len, columns)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, ids: slice | np.ndarray) -> np.ndarray:
        """The numbers of the records in a slice, in a mask, or with these ids."""
        if isinstance(ids, slice):
            ids = np.arange(*ids.indices(len(self)))
        elif ids.dtype == bool:
            ids = np.flatnonzero(ids)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
            raise IndexError(f"{ids} are not numbers of {len(self)} records")
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        values = np.empty(len(ids), np.uint32)
        for number, column in enumerate(self._columns):
            values[owners == number] = column[ids[owners == number] - self._starts[number]]
        return values


def _column(columns: Sequence[tuple[Column | None, range]]) -> Column | None:
    """A column for all records, from the sources' columns and the rows of each; None unless every
    source has it."""
    known = [column[which.start : which.stop] for column, which in columns if column is not None]
    if len(known) < len(columns):
        return None
    return known[0] if len(known) == 1 else _Joined(known)


def _crc_sum(parts: Sequence[Part]) -> int:
    """The sum of crcs modulo 2**32, of parts that all have them."""
    infos: list[Any] = [part.info for part in parts]
    return (
        sum(
            info.crc_sum if part.is_whole else sum_of_crcs(info.crcs, part.which)
            for info, part in zip(infos, parts, strict=True)
        )
        % 2**32
    )


def _name(part: Part) -> str:
    return part.info.name + ("" if part.is_whole else f"[{part.which.start}:{part.which.stop}]")


def _common(sources: Sequence[RecordsInfo]) -> Layout:
    """The layout of every record: of the features, those that are alike in all sources."""
    first, *others = sources
    layout = first.layout
    for other in others:
        if isinstance(layout, Schema) and isinstance(other.layout, Schema):
            layout = _shared(layout, other.layout)
        elif layout != other.layout:
            layout = None
        if layout is None:
            raise SchemaError(
                f"the records of {first.name} and of {other.name} have nothing in common: "
                f"{first.layout} and {other.layout}. Concatenate datasets that share a feature."
            )
    return layout


def _shared(one: Schema, other: Schema) -> Schema | None:
    if one.opaque and other.opaque:
        return one
    features = {
        key: merged_feature(key, feature, twin)
        for key, feature in one.features.items()
        if (twin := other.features.get(key))
        and (twin.dtype, twin.shape, twin.unit) == (feature.dtype, feature.shape, feature.unit)
    }
    return replace(one, features=features) if features else None
