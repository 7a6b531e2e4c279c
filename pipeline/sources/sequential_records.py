"""The records of files that can only be read from their fronts: TFRecords without an index, and
lines of text; and the splits of files that no manifest lists: a directory prepared by TFDS,
TFRecord files whose names contain their splits, and the files that a user names with one string: a
file, a directory, or a pattern such as "data/*.bin".

open_dataset uses them when nothing states where records start. Opening a split counts its records,
because epochs, positions and exact evaluation need their number. No order, no hosts, no
TensorFlow."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from pipeline.errors import EmptySplitError, OptionError, RawDataError, SchemaError, ShardError
from pipeline.formats import TFRecords
from pipeline.logs import log
from pipeline.shards.frames import Compression
from pipeline.shards.naming import hex_digest
from pipeline.shards.schema import Labels, Schema
from pipeline.sizes import format_bytes
from pipeline.sources.merged_schemas import SchemaGuess
from pipeline.sources.named_splits import files_by_name, tfds_classes, tfds_files
from pipeline.sources.records import RECORD_OBJECT_BYTES, Groups, Records, RecordsInfo
from pipeline.sources.sequential_file import (
    CountedFile,
    Kind,
    SequentialFile,
    SequentialReading,
    compressions,
    counts_of,
    frames_of,
)
from pipeline.sources.tfds_features import described_by_tfds
from pipeline.spec import Layout, Opaque
from pipeline.storage.storage import Listing, Storage, files_at_once, in_parallel, join

SAMPLED_FILES, SAMPLED_RECORDS = 16, 32  # evenly spaced files, and the first records of each
SAMPLE_READ_BYTES = 1 << 20
Splits = Mapping[str, Callable[[], Records]]


class SequentialRecords:
    """The records of consecutive files: see Records. A file can only be read from its front.

    kind: TFRecord files, plain, GZIP or ZLIB, or text files, plain or GZIP, split like
        TextLineDataset.
    paths: path -> stat, in order.
    layout: None infers it from a sample.
    counts: records per file; None counts them.
    counted_by: "X says", for counts.
    labels: the class names, if known.
    fingerprint: of names, sizes, counts, and the checksums that a bucket stores. On a disk, files
        with different content and the same sizes and counts therefore have the same fingerprint.

    Raises ShardError naming a damaged file, EmptySplitError, SchemaError, StorageError."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        paths: Listing,
        storage: Storage,
        layout: Layout | None = None,
        counts: Sequence[int] | None = None,
        counted_by: str = "when counted at opening, it had",
        labels: Labels | None = None,
    ) -> None:
        self._storage = storage
        files = _files(paths, storage, kind)
        contents = (
            _counted(name, files, storage)
            if counts is None
            else [(count, file.stat.bytes) for count, file in zip(counts, files, strict=True)]
        )
        *firsts, num_records = np.cumsum([0, *(records for records, _ in contents)]).tolist()
        if not num_records:
            raise EmptySplitError(
                f"{name}: {len(files)} files without a record, so there is nothing to read."
            )
        counted = [
            CountedFile(file, *content, first, counted_by)
            for file, content, first in zip(files, contents, firsts, strict=True)
        ]
        lines = [
            f"{kind} {file.path.rpartition('/')[2]} {file.stat} {records}\n"
            for file, records, *_ in counted
        ]
        self._files = [file for file in counted if file.records]
        self._firsts = np.array([file.first for file in self._files])
        num_bytes = np.array([f.bytes + RECORD_OBJECT_BYTES * f.records for f in self._files])
        self._mean_bytes = num_bytes / [file.records for file in self._files]
        # a TFRecord's checksum is checked as it is read; it is not known before
        self.info = RecordsInfo(
            name=name,
            fingerprint=hex_digest("".join(lines).encode("utf-8", "surrogateescape")),
            num_records=num_records,
            num_bytes=int(num_bytes.sum()),
            layout=layout or _guessed(name, self._files, storage),
            labels=labels,
            remote=storage.remote,
            whole_files=len(self._files),
        )

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records: a file is a block, however large."""
        return self._firsts

    def weigh(self, record_ids: np.ndarray) -> int:
        """See Records: estimated from the mean size in each record's file."""
        return int(self._mean_bytes[self._owners(record_ids)].sum())

    def read(self, groups: Groups, ahead_bytes: int) -> SequentialReading:
        """See Records. Iterating raises ShardError, naming file and record, if the rest of a file
        cannot be read."""
        return SequentialReading(self._storage, self._files, groups, ahead_bytes)

    def where(self, record_id: int) -> str:
        """The location of a record, for messages: file, and record within it."""
        counted = self._files[int(self._owners(np.array([record_id]))[0])]
        return (
            f"{counted.file.path}, record {record_id - counted.first} (record {record_id} of "
            f"{self.info.name})"
        )

    def _owners(self, record_ids: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._firsts, record_ids, side="right") - 1


def _files(files: Listing, storage: Storage, kind: Kind) -> list[SequentialFile]:
    """The files, with the compression that the first bytes show."""
    forms: dict[str, Compression] = compressions(storage, files)
    if kind != "tfrecord":  # text can start like a zlib stream: "x^2"
        forms = {path: form for path, form in forms.items() if form == "gzip"}
    return [SequentialFile(path, stat, kind, forms.get(path)) for path, stat in files.items()]


def _counted(name: str, files: Sequence[SequentialFile], storage: Storage) -> list[tuple[int, int]]:
    """The result of counts_of for each file."""
    size = format_bytes(sum(file.stat.bytes for file in files))
    began = time.monotonic()
    log.info("%s: counting the records of %d files, %s", name, len(files), size)
    with ThreadPoolExecutor(files_at_once(storage), thread_name_prefix="infeed-count") as pool:
        # cancels the others after an error
        counts = list(pool.map(partial(counts_of, storage), files))
    seconds = time.monotonic() - began
    num_records = sum(records for records, _ in counts)
    log.info("%s: %d records, counted in %.1f s", name, num_records, seconds)
    return counts


def _guessed(name: str, files: Sequence[CountedFile], storage: Storage) -> Layout:
    """The schema that a sample of the records has in common; Opaque if one of them is not an
    Example."""
    count = min(SAMPLED_FILES, len(files))
    sampled = [files[i * len(files) // count] for i in range(count)]
    guess = SchemaGuess()
    try:
        for payloads in in_parallel(partial(_first_payloads, storage), sampled):
            for payload in payloads:
                guess.add(payload)
    except SchemaError as e:
        raise SchemaError(f"{name}: {e} Here: format=TFRecords(schema=...).") from e
    if guess.schema is None or guess.schema.opaque:
        log.info(
            "%s: the records are not tf.train.Examples; each is one bytes value, 'record'", name
        )
        return Opaque()
    features = ", ".join(
        f"{key} {f.dtype}{list(f.shape)}" for key, f in sorted(guess.schema.features.items())
    )
    log.info("%s: according to the first records of %d files, each has %s", name, count, features)
    return guess.schema


def _first_payloads(storage: Storage, counted: CountedFile) -> list[bytes]:
    frames = frames_of(storage, counted.file, lambda: SAMPLE_READ_BYTES, counted.bytes)
    return [
        frame.payload for frame in itertools.islice(frames, SAMPLED_RECORDS) if not frame.problem
    ]


def foreign_splits(
    directory: str, storage: Storage, format: TFRecords | None, trust_features: Sequence[str] = ()
) -> Splits:
    """A function per split that opens it; empty if there are none, or if a conversion has not
    finished.

    format: use only the files; None also uses TFDS's description of them. trust_features: see
    open_dataset. Raises OptionError, and RawDataError for files whose split is unknown or
    incomplete."""
    if format is None:
        if storage.list(join(directory, "_shards")):
            return {}
        return _of_tfds(directory, storage, trust_features) or _by_name(directory, storage, None)
    splits = _by_name(directory, storage, format.schema)
    if not splits:
        raise OptionError(
            f"{directory}: no file is named like a TFRecord file of a split (train-00000-of-00010, "
            f"train.tfrecord, ...). Select files with a pattern: {directory}/PATTERN."
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
                f"{directory}: {len(missing)} of {len(counts)} files of {split!r} are missing, "
                f"such as {missing[0]}. Copy the dataset again, or prepare it again."
            )
        files = {join(directory, name): listed[name] for name in counts}
        counted_by = f"{join(directory, 'dataset_info.json')} says"
        name = f"{directory}, split {split!r}"
        return SequentialRecords(
            "tfrecord", name, files, storage, schema, [*counts.values()], counted_by, labels
        )

    return {split: partial(opened, split, counts) for split, counts in splits.items()}


def _by_name(directory: str, storage: Storage, schema: Schema | None) -> Splits:
    try:
        files = files_by_name(directory, storage.list(directory))
    except RawDataError as e:
        raise RawDataError(
            f"{e} For open_dataset: a pattern for the files of one split, {directory}/PATTERN."
        ) from e
    splits = {}
    for split, listed in files.items():
        paths = {join(directory, name): stat for name, stat in listed.items()}
        name = f"{directory}, split {split!r}"
        splits[split] = partial(SequentialRecords, "tfrecord", name, paths, storage, schema)
    return splits
