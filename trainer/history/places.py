"""Where the records of a batch are, and what tells them apart: shard, offset, key and label.

Opens the sources of a run's input again, from its history. Needs neither JAX nor TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.describing.shown_records import ShownRecord, show_records
from pipeline.errors import InfeedError, printable
from pipeline.inputs.provenance import Origin, reopened
from pipeline.logs import logger
from pipeline.shards.example_decoding import decode_example
from pipeline.sources.indexed_records import FILE_NAME_KEYS, IndexedRecords, key_of
from pipeline.sources.records import Proven, fetch
from pipeline.tools.packed_text import find_text_info, row_text
from pipeline.tools.record_checks import label_name, labels_of

__all__ = ["Place", "Places"]

log = logger("trainer")

NAMES = (*FILE_NAME_KEYS, "filename", "key", "id", "name")  # features that identify a record


@dataclass(frozen=True)
class Place:
    """Where a record is. record: its number in the split; shard_record: in the shard; offset: the byte at which its
    frame begins. key, label: as text, "" if the record has none. None: not known."""

    directory: str | None = None
    split: str | None = None
    record: int | None = None
    shard: str | None = None
    shard_record: int | None = None
    offset: int | None = None
    key: str = ""
    label: str = ""


class Places:
    """The places of an input's records by number. directory: where data are now that were moved.

    A source that cannot be opened is reported in the log once; its records have only the numbers that the history
    knows."""

    def __init__(self, origins: Sequence[Origin], directory: str | None = None) -> None:
        self._origins, self._directory = origins, directory
        self._ends = np.cumsum([origin.stop - origin.first for origin in self._origins])
        self._opened: dict[tuple[str | None, ...], IndexedRecords | None] = {}

    def of(self, record_ids: np.ndarray) -> list[Place]:
        """The places of these records; reads the records for their keys and labels."""
        places = [Place()] * len(record_ids)
        for origin, rows, numbers in self._by_origin(record_ids):
            for row, place in zip(rows.tolist(), self._within(origin, numbers), strict=True):
                places[row] = place
        return places

    def shown(self, record_ids: np.ndarray) -> list[ShownRecord | None]:
        """The same records with their pictures and texts; None where the source cannot be opened."""
        shown: list[ShownRecord | None] = [None] * len(record_ids)
        for origin, rows, numbers in self._by_origin(record_ids):
            if source := self._source(origin):
                info = find_text_info(source.manifest)
                found = show_records(source, numbers, None if info is None else partial(row_text, info))
                for row, record in zip(rows.tolist(), found, strict=True):
                    shown[row] = record
        return shown

    def _by_origin(self, record_ids: np.ndarray) -> Iterator[tuple[Origin, np.ndarray, np.ndarray]]:
        """(origin, rows of record_ids, their numbers in the origin's source)."""
        owners = np.searchsorted(self._ends, record_ids, side="right")
        for owner in np.unique(owners).tolist():
            rows, origin = np.flatnonzero(owners == owner), self._origins[owner]
            yield origin, rows, record_ids[rows] - self._ends[owner] + origin.stop

    def _within(self, origin: Origin, numbers: np.ndarray) -> Iterator[Place]:
        source = self._source(origin)
        if source is None:
            yield from (Place(origin.directory, origin.split, number) for number in numbers.tolist())
            return
        at = source.index.locate(numbers)
        files = [source.entry.shards[shard].file for shard in at.shard.tolist()]
        told = [_told(source, record) for record in fetch(source, numbers)]
        columns = (files, at.record.tolist(), at.offset.tolist(), told)
        for number, (file, record, offset, (key, label)) in zip(
            numbers.tolist(), zip(*columns, strict=True), strict=True
        ):
            yield Place(source.manifest.directory, source.split, number, file, record, offset, key, label)

    def _source(self, origin: Origin) -> IndexedRecords | None:
        which = (origin.directory, origin.split, origin.fingerprint)
        if which not in self._opened:
            try:
                self._opened[which] = reopened(origin, self._directory)
            except (InfeedError, ValueError) as e:  # ValueError: a path that no system call takes
                log.warning("cannot locate the records: %s", e)
                self._opened[which] = None
        return self._opened[which]


def _told(source: IndexedRecords, record: Any) -> tuple[str, str]:
    """The key and the label of a record, as text; of a damaged record, what is wrong."""
    if not isinstance(record, Proven):
        return f"(damaged: {record})", ""
    if source.manifest.schema.opaque:
        return "", ""
    try:
        values = decode_example(record.payload)
    except InfeedError as e:
        return f"(damaged: {e})", ""
    key = key_of(source.manifest.name, source.split, values)
    if key is None:
        key = next((values[name][0] for name in NAMES if values.get(name)), b"")
    text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
    return printable(text), ", ".join(_labels(source, values))


def _labels(source: IndexedRecords, values: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """The labels of a record, with their names; without named classes, the single integers of features called label."""
    if source.info.labels:
        for label in labels_of(source.info.labels, values):
            yield f"{label} {label_name(source.info.labels, label) or ''}".strip()
        return
    for name, found in values.items():
        if name.rpartition("/")[2] == "label" and len(found) == 1 and isinstance(found[0], int):
            yield str(found[0])
