"""Opens datasets as records: one or several, a complete split or parts of it.

train_dataset and eval_dataset read what it returns. It detects what is at a location by looking
there."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any

from pipeline.checks import did_you_mean
from pipeline.errors import EmptySplitError, OptionError, ShardError
from pipeline.formats import FixedLength, Format, TextLines
from pipeline.shards.manifest import find_manifest, read_manifest
from pipeline.shards.naming import MANIFEST_FILE
from pipeline.sources.concatenated import Part, concatenated
from pipeline.sources.dataset import Dataset
from pipeline.sources.fixed_length_records import FixedLengthRecords
from pipeline.sources.in_memory import ArrayRecords
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.named_splits import is_pattern, matching_files
from pipeline.sources.records import Records, as_records
from pipeline.sources.sequential_records import SequentialRecords, Splits, foreign_splits
from pipeline.spec import Opaque
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, find_file

Data = str | PathLike[str] | Mapping[str, Any] | Records


def open_dataset(
    data: Data | Sequence[Data],
    split: str | None = None,
    *,
    format: Format | None = None,
    default_split: str = "train",
    trust_features: Sequence[str] = (),
    index_dir: str | PathLike[str] | None = None,
) -> Dataset:
    """The records of one dataset, or of several concatenated, after checking that all files are
    there.

    data: a directory, also in a bucket, with a converted or indexed dataset, a dataset prepared
    by TFDS, or TFRecord files whose names contain their splits; a TFRecord file or a pattern
    ("data/*.tfrecord.gz"); with `format`, which states how files are split into records, a file, a
    pattern or a directory that contains only such files; a dict of arrays with the same number of
    rows; records that are already open; or a list of these. split: a selection in TFDS's notation,
    for each dataset: "train", "train[:90%]", "train[1000:2000]", "train[:10%]+validation"; "[:90%]"
    for data without splits. None: default_split, or all records. trust_features: your modules with
    features that a dataset of TFDS uses. TFDS imports them and runs their code; a dataset that
    names any others is refused. index_dir: a directory on a local disk, to which the index of a
    dataset in a bucket is copied once, for all processes of this host and for later runs; None:
    each process holds it, in 8 bytes per record. On a disk, processes share an index in any case.

    TFRecord files without an index, and lines of text, are counted here: compressed files, text and
    files in a bucket are read once for that, on every host. format=TFRecords() uses only the files,
    even if a manifest or TFDS describes them.

    Raises: ManifestError, OptionError, EmptySplitError, ShardError naming what is missing,
    truncated or replaced, before any record is read; SchemaError for datasets whose records have no
    common feature."""
    if not isinstance(format, Format | None):
        raise OptionError(
            f"format={format!r} is not known. Known: FixedLength(...), TextLines(), TFRecords()."
        )
    several = [data] if isinstance(data, str | PathLike) or not isinstance(data, Sequence) else data
    parts = list[Part]()
    for one in several:
        if isinstance(one, str | PathLike):
            opening = partial(
                IndexedRecords, index_dir=None if index_dir is None else fspath(index_dir)
            )
            parts += _parts_at(fspath(one), split, format, default_split, trust_features, opening)
            continue
        if format is not None:
            raise OptionError(
                f"format={format!r} is for files only; arrays and open records already have "
                "records."
            )
        records = ArrayRecords(one) if isinstance(one, Mapping) else as_records(one)
        if records is None:
            raise OptionError(
                f"{type(one).__name__} is not a dataset. Give a directory, a file or a pattern; a "
                "dict of arrays such as {'image': images}; records from open_dataset; or a list of "
                "these."
            )
        parts += _parts_of_records(records, split)
    opened = concatenated(parts)
    return opened if isinstance(opened, Dataset) else Dataset(opened)


def _parts_at(
    uri: str,
    split: str | None,
    format: Format | None,
    default: str,
    trusted: Sequence[str],
    opening: Callable[..., Records],
) -> list[Part]:
    storage = open_storage(uri)
    directory, _, name = uri.rpartition("/")
    if name == MANIFEST_FILE:
        raise OptionError(
            f"{uri} is a dataset's manifest, which contains no records. Give its directory: "
            f"{directory or '.'}"
        )
    manifest = find_manifest(uri, storage) if format is None else None
    if manifest:
        splits: Splits = {
            name: partial(opening, manifest, name, storage) for name in manifest.splits
        }
    elif isinstance(format, FixedLength | TextLines) or is_pattern(name) or find_file(storage, uri):
        return _parts_of_records(_records_at(uri, format, storage), split)
    else:
        splits = foreign_splits(uri, storage, format, trusted)
    if not splits:
        read_manifest(uri, storage)  # raises an error that states what is there
    opened = dict[str, Records]()
    parts = []
    for selection in parse_selections(default if split is None else split):
        chosen = selection.split
        if chosen not in splits:
            raise OptionError(f"{uri} has no split {chosen!r}.{did_you_mean(chosen, splits)}")
        if chosen not in opened:
            opened[chosen] = splits[chosen]()
        parts.append(Part(opened[chosen], selection.of(opened[chosen].info.num_records)))
    return parts


def _records_at(uri: str, format: Format | None, storage: Storage) -> Records:
    """The records of files that have no splits."""
    files = matching_files(uri, storage)
    if isinstance(format, FixedLength):
        return FixedLengthRecords(uri, files, format, storage)
    if isinstance(format, TextLines):
        return SequentialRecords("text", uri, files, storage, Opaque(format.key))
    try:
        schema = format.schema if format else None
        return SequentialRecords("tfrecord", uri, files, storage, schema)
    except ShardError as e:
        if format is None:
            e.add_note(
                "If these are not TFRecord files, give a format: TextLines() or FixedLength(...)."
            )
        raise


def _parts_of_records(records: Records, split: str | None) -> list[Part]:
    if split is None:
        return [Part(records)]
    selections = parse_selections(split)
    if any(selection.split for selection in selections):
        raise OptionError(
            f"split={split!r}: {records.info.name} has no splits, or was opened with one. Give "
            "split=None for all records, or '[:90%]' for a part."
        )
    return [Part(records, selection.of(records.info.num_records)) for selection in selections]


_PART = re.compile(r"(?P<split>[^\[\]+]*?)(?:\[(?P<first>[^\[\]:]*):(?P<stop>[^\[\]:]*)\])?")
_EXAMPLES = "'train', 'train[:90%]', 'train[1000:]', 'train[:50%]+validation'"


@dataclass(frozen=True)
class Selection:
    """Consecutive records of one split."""

    split: str
    text: str
    first: str | None = None
    stop: str | None = None

    def of(self, num_records: int) -> range:
        """The numbers of the selected records. OptionError beyond the end, EmptySplitError if there
        are none."""
        first = _place(self.first, num_records) if self.first else 0
        stop = _place(self.stop, num_records) if self.stop else num_records
        if min(first, stop) < 0 or max(first, stop) > num_records:
            raise OptionError(
                f"{self.text!r} is out of range: the split has {num_records} records."
            )
        if stop <= first:
            raise EmptySplitError(
                f"{self.text!r} selects none of {num_records} records: {first} to {stop}."
            )
        return range(first, stop)


def parse_selections(text: str) -> list[Selection]:
    """The selections in a text, in order. Raises OptionError for a part that is not in the
    notation."""
    return [_parsed(part.strip(), text) for part in text.split("+")]


def _parsed(part: str, text: str) -> Selection:
    match = _PART.fullmatch(part)
    if not match or not part:
        raise OptionError(
            f"split={text!r}: {part!r} is not a split or a part of one. Examples: {_EXAMPLES}."
        )
    bounds = [_bound(match[side], text) if match[side] else None for side in ("first", "stop")]
    return Selection(match["split"].strip(), part, *bounds)


def _bound(written: str, text: str) -> str | None:
    """A position in a split, without blanks: a record's number, or a percentage; negative ones
    count from the end."""
    bound = re.sub(r"\s+(?=%)", "", written.strip())
    if bound and (
        not re.fullmatch(r"-?\d+%?", bound) or (bound.endswith("%") and abs(int(bound[:-1])) > 100)
    ):
        raise OptionError(
            f"split={text!r}: {written.strip()!r} is not a position in a split. Give an integer, "
            f"or -100% to 100%. Examples: {_EXAMPLES}."
        )
    return bound or None


def _place(bound: str, num_records: int) -> int:
    number = int(bound.removesuffix("%"))
    # TFDS's own rounding, so that both select the same records.
    at = round(number * num_records / 100.0) if bound.endswith("%") else number
    return at + num_records if number < 0 else at
