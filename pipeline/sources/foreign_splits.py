"""Files that no manifest lists: the splits of a directory prepared by TFDS, TFRecord files whose names contain their
splits, and the files that a user names with one string: a file, a directory, or a pattern such as "data/*.bin".

open_dataset uses it when it finds no manifest. A split's records are not read before it is opened."""

import functools
from collections.abc import Callable, Mapping, Sequence

from pipeline.errors import OptionError, RawDataError, ShardError
from pipeline.formats import TFRecords
from pipeline.shards.schema import Schema
from pipeline.sources.named_splits import files_by_name, is_pattern
from pipeline.sources.records import Records
from pipeline.sources.sequential_records import SequentialRecords
from pipeline.sources.tfds_features import described_by_tfds
from pipeline.sources.tfds_files import tfds_classes, tfds_files
from pipeline.storage.storage import Storage, find_file, join

Splits = Mapping[str, Callable[[], Records]]


def foreign_splits(
    directory: str, storage: Storage, format: TFRecords | None, trust_features: Sequence[str] = ()
) -> Splits:
    """A function per split that opens it; empty if there are none, or if a conversion has not finished.

    format: use only the files; None also uses TFDS's description of them. trust_features: see open_dataset. Raises
    OptionError, and RawDataError for files whose split is unknown or incomplete."""
    if format is None:
        if storage.list(join(directory, "_shards")):
            return {}
        return _of_tfds(directory, storage, trust_features) or _by_name(directory, storage, None)
    splits = _by_name(directory, storage, format.schema)
    if not splits:
        raise OptionError(
            f"{directory}: no file is named like a TFRecord file of a split (train-00000-of-00010, train.tfrecord, "
            f"...). Select files with a pattern: {directory}/PATTERN."
        )
    return splits


def _of_tfds(directory: str, storage: Storage, trust_features: Sequence[str]) -> Splits:
    """Record counts are from dataset_info.json. Raises InfeedError without TFDS."""
    listed = storage.list(directory)
    tfds = tfds_files(storage, directory, listed)
    if not tfds:
        return {}
    schema, splits = described_by_tfds(directory, tfds, trust_features)
    labels = tfds_classes(tfds)

    def opened(split: str, counts: Mapping[str, int]) -> SequentialRecords:
        missing = [name for name in counts if name not in listed]
        if missing:
            raise ShardError(
                f"{directory}: {len(missing)} of {len(counts)} files of {split!r} are missing, such as {missing[0]}. "
                "Copy the dataset again, or prepare it again."
            )
        files = {join(directory, name): listed[name] for name in counts}
        counted_by = f"{join(directory, 'dataset_info.json')} says"
        name = f"{directory}, split {split!r}"
        return SequentialRecords("tfrecord", name, files, storage, schema, [*counts.values()], counted_by, labels)

    return {split: functools.partial(opened, split, counts) for split, counts in splits.items()}


def _by_name(directory: str, storage: Storage, schema: Schema | None) -> Splits:
    try:
        files = files_by_name(directory, storage.list(directory))
    except RawDataError as e:
        raise RawDataError(f"{e} For open_dataset: a pattern for the files of one split, {directory}/PATTERN.") from e
    splits = {}
    for split, named in files.items():
        paths = {join(directory, name): stat for name, stat in named.items()}
        name = f"{directory}, split {split!r}"
        splits[split] = functools.partial(SequentialRecords, "tfrecord", name, paths, storage, schema)
    return splits


def is_directory(uri: str, storage: Storage) -> bool:
    """Whether it is neither a pattern nor a file. It need not exist."""
    return not is_pattern(uri.rpartition("/")[2]) and not find_file(storage, uri)
