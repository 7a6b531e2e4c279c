"""Opens what a user names as records: one dataset or several, all of a split or parts of it.

Recipes take what this gives. What is at a place is found by looking there."""

from collections.abc import Sequence
from os import PathLike, fspath

from pipeline.joined import Part, joined, whole
from pipeline.reader import SplitReader
from pipeline.records import Records
from pipeline.selection import parse_selections
from pipeline.shards.errors import OptionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schemes import open_storage

__all__ = ["Data", "open_dataset"]

Data = str | PathLike[str] | Records


def open_dataset(data: Data | Sequence[Data], split: str | None = None, *, default_split: str = "train") -> Records:
    """The records of one dataset, or of several one behind the other, after checking that all is there.

    data: directory of a converted or an indexed dataset, on a disk or gs://; records that were opened before; or a list
    of these. split: which of them, in TFDS's notation, of each dataset: "train", "train[:90%]", "train[1000:2000]",
    "train[:10%]+validation"; "[:90%]" of records, which have no splits. None: default_split, or all records.

    Raises: ManifestError, OptionError, EmptySplitError, ShardError naming what is missing, truncated or replaced,
    before any record is read; SchemaError for datasets whose records have nothing in common."""
    several = [data] if isinstance(data, str | PathLike) or not isinstance(data, Sequence) else data
    return joined([part for one in several for part in _parts(one, split, default_split)])


def _parts(data: Data, split: str | None, default_split: str) -> list[Part]:
    if isinstance(data, str | PathLike):
        return _parts_of_directory(fspath(data), split or default_split)
    if split is None:
        return [whole(data)]
    parts = []
    for selection in parse_selections(split):
        if selection.split:
            raise OptionError(
                f"split={split!r}: {data.name} is open already and has no splits. Give {selection.split!r} where it is "
                "opened; a part of it is '[:90%]'."
            )
        parts.append(Part(data, selection.of(data.num_records)))
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
