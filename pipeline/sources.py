"""Opens what a user names as records: one dataset or several, all of a split or parts of it.

Recipes take what this gives. What is at a place is found by looking there."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from pipeline.arrays import ArrayRecords
from pipeline.fixed_length import FixedLengthRecords
from pipeline.formats import FixedLength
from pipeline.joined import Part, joined, whole
from pipeline.matching import matching_files
from pipeline.reader import SplitReader
from pipeline.records import Records
from pipeline.selection import parse_selections
from pipeline.shards.errors import OptionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schemes import open_storage

__all__ = ["Data", "open_dataset"]

Data = str | PathLike[str] | Mapping[str, Any] | Records


def open_dataset(
    data: Data | Sequence[Data],
    split: str | None = None,
    *,
    format: FixedLength | None = None,
    default_split: str = "train",
) -> Records:
    """The records of one dataset, or of several one behind the other, after checking that all is there.

    data: directory of a converted or an indexed dataset, on a disk or gs://; with `format`, which says how they are cut
    into records, a file, a directory of nothing but such files, or a pattern ("data/*.bin"); a dict of arrays with
    equally many rows; records that were opened before; or a list of these. split: which of them, in TFDS's notation, of
    each dataset: "train", "train[:90%]", "train[1000:2000]", "train[:10%]+validation"; "[:90%]" of what has no splits.
    None: default_split, or all records.

    Raises: ManifestError, OptionError, EmptySplitError, ShardError naming what is missing, truncated or replaced,
    before any record is read; SchemaError for datasets whose records have nothing in common."""
    several = [data] if isinstance(data, str | PathLike) or not isinstance(data, Sequence) else data
    return joined([part for one in several for part in _parts(one, split, format, default_split)])


def _parts(data: Data, split: str | None, format: FixedLength | None, default_split: str) -> list[Part]:
    if isinstance(data, str | PathLike):
        uri = fspath(data)
        if format is None:
            return _parts_of_directory(uri, split or default_split)
        storage = open_storage(uri)
        return _parts_of_records(FixedLengthRecords(uri, matching_files(uri, storage), format, storage), split)
    if format is not None:
        raise OptionError(f"format={format!r} says how files are cut into records; arrays and open records are.")
    return _parts_of_records(ArrayRecords(data) if isinstance(data, Mapping) else data, split)


def _parts_of_records(records: Records, split: str | None) -> list[Part]:
    if split is None:
        return [whole(records)]
    parts = []
    for selection in parse_selections(split):
        if selection.split:
            raise OptionError(
                f"split={split!r}: {records.name} has no splits, or they were chosen where it was opened. All of it is "
                "split=None, a part of it '[:90%]'."
            )
        parts.append(Part(records, selection.of(records.num_records)))
    return parts


def _parts_of_directory(directory: str, split: str) -> list[Part]:
    storage = open_storage(directory)
    manifest = read_manifest(directory, storage)
    readers: dict[str, SplitReader] = {}
    parts = []
    for selection in parse_selections(split):
        if selection.split not in readers:
            readers[selection.split] = SplitReader(manifest, selection.split, storage)
        reader = readers[selection.split]
        parts.append(Part(reader, selection.of(reader.num_records)))
    return parts
