"""Where the records of an input come from, as JSON, and the records again, opened from that.

A run writes origins once per start; tools that look back name records with them. Numbers and names only."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InfeedError, ShardError
from pipeline.shards.manifest import read_manifest
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import Records
from pipeline.storage.schemes import is_remote, open_storage

__all__ = ["Origin", "origins_of", "reopened"]


@dataclass(frozen=True)
class Origin:
    """Consecutive records of one source: numbers first..stop-1 of it.

    directory, split: of the manifest that lists the source; None for data without one. name: of the source, for
    messages. fingerprint: identifies its data, wherever they are."""

    name: str
    fingerprint: str
    first: int
    stop: int
    directory: str | None = None
    split: str | None = None


def origins_of(records: Records) -> list[Origin]:
    """The origins of these records, in order: one for each part of a concatenation or mixture."""
    return list(_origins(records, range(records.info.num_records)))


def _origins(records: Records, which: range) -> Iterator[Origin]:
    """`which`: the numbers of the records to cover."""
    while (source := getattr(records, "source", None)) is not None:  # a Dataset, or a cache
        records = source
    if isinstance(records, Concatenated):
        for part, first in zip(records.parts, records.info.source_starts.tolist(), strict=False):
            low, high = (min(max(at - first, 0), len(part.which)) for at in (which.start, which.stop))
            if low < high:
                yield from _origins(part.records, part.which[low:high])
        return
    place = split = None
    if isinstance(records, IndexedRecords):
        directory, split = records.manifest.directory, records.split
        place = directory if is_remote(directory) else str(Path(directory).absolute())
    info = records.info
    yield Origin(info.name, info.fingerprint, which.start, which.stop, directory=place, split=split)


def reopened(origin: Origin, directory: str | None = None) -> IndexedRecords:
    """The source of an origin, opened again: in `directory`, to which some data have been moved, or where it was.

    Raises ShardError if it cannot be opened without the program that made it, or has other data now; and whatever
    opening raises."""
    if origin.directory is None or origin.split is None:
        raise ShardError(f"{origin.name} has no manifest, so it cannot be opened again to name its records.")
    if directory is None:
        return _opened(origin, origin.directory, origin.split)
    try:
        return _opened(origin, directory, origin.split)
    except InfeedError as moved:
        try:  # of a mixture, only some sources were moved
            return _opened(origin, origin.directory, origin.split)
        except InfeedError:
            raise moved from None


def _opened(origin: Origin, place: str, split: str) -> IndexedRecords:
    storage = open_storage(place)
    records = IndexedRecords(read_manifest(place, storage), split, storage)
    info = records.info
    if info.fingerprint != origin.fingerprint:
        raise ShardError(
            f"{info.name} has the fingerprint {info.fingerprint}; the run read {origin.fingerprint}. The data "
            "have been converted again, or are other data. Give --data-dir with those that the run read."
        )
    return records
