"""The splits of a directory that no manifest speaks of: of TFDS, or TFRecord files whose names tell their splits.

open_dataset looks here where it finds no manifest. Nothing of a split is read before it is opened."""

import functools
import json
from collections.abc import Callable, Mapping

from pipeline.formats import TFRecords
from pipeline.shards.errors import OptionError, RawDataError, ShardError
from pipeline.shards.schema import Schema
from pipeline.shards.storage import Stat, Storage, join
from pipeline.sources.named_splits import files_by_name
from pipeline.sources.records import Records
from pipeline.sources.streamed import StreamedRecords, open_tfrecords
from pipeline.sources.tfds_features import described_by_tfds
from pipeline.sources.tfds_files import tfds_files

__all__ = ["Splits", "foreign_splits"]

Splits = Mapping[str, Callable[[], Records]]


def foreign_splits(directory: str, storage: Storage, format: TFRecords | None) -> Splits:
    """What opens each split; none where there is nothing of the kind, or a conversion that has not finished.

    format: goes by the files alone; None also by what TFDS says of them. Raises OptionError, and RawDataError for files
    of which no split, or not all of one, can be told."""
    if format is None:
        if storage.list(join(directory, "_shards")):
            return {}
        return _of_tfds(directory, storage) or _by_name(directory, storage, None)
    splits = _by_name(directory, storage, format.schema)
    if not splits:
        raise OptionError(
            f"{directory}: no file there has a name like a TFRecord file of a split (train-00000-of-00010, "
            f"train.tfrecord, ...). Give a pattern of those that you mean: {directory}/PATTERN."
        )
    return splits


def _of_tfds(directory: str, storage: Storage) -> Splits:
    """Records are counted by dataset_info.json. Raises InfeedError without TFDS."""
    listed = storage.list(directory)
    tfds = tfds_files(storage, directory, listed)
    if not tfds:
        return {}
    form = json.loads(tfds["dataset_info.json"]).get("fileFormat") or "tfrecord"
    if form != "tfrecord":
        raise OptionError(
            f"{directory} is in TFDS's format {form!r}; only tfrecord can be read. Prepare it so: "
            "download_and_prepare(file_format='tfrecord')."
        )
    schema, splits = described_by_tfds(directory, tfds)

    def opened(split: str, counts: Mapping[str, int]) -> StreamedRecords:
        missing = [name for name in counts if name not in listed]
        if missing:
            raise ShardError(
                f"{directory}: of {len(counts)} files of {split!r} {len(missing)} are missing, {missing[0]} first. "
                "Copy the dataset again, or prepare it again."
            )
        files = _whole(directory, {name: listed[name] for name in counts})
        counted_by = f"{join(directory, 'dataset_info.json')} says"
        return open_tfrecords(
            _name(directory, split), files, storage, schema, counts=list(counts.values()), counted_by=counted_by
        )

    return {split: functools.partial(opened, split, counts) for split, counts in splits.items()}


def _by_name(directory: str, storage: Storage, schema: Schema | None) -> Splits:
    try:
        files = files_by_name(directory, storage.list(directory))
    except RawDataError as e:
        raise RawDataError(f"{e} For open_dataset: a pattern of the files of one split, {directory}/PATTERN.") from e
    return {
        split: functools.partial(open_tfrecords, _name(directory, split), _whole(directory, named), storage, schema)
        for split, named in files.items()
    }


def _name(directory: str, split: str) -> str:
    return f"{directory}, split {split!r}"


def _whole(directory: str, files: Mapping[str, Stat]) -> dict[str, Stat]:
    return {join(directory, name): stat for name, stat in files.items()}
