"""What open_dataset returns: Records that are also a sequence of payloads, for NumPy, PyTorch,
grain and plain loops.

It wraps any Records, so a source needs nothing for it. Independent of orders and TensorFlow."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, SupportsIndex, overload

import numpy as np

from pipeline.errors import OptionError, RecordNumberError, SchemaError
from pipeline.parsing import RecordParser
from pipeline.shards.schema import Labels
from pipeline.sources.concatenated import Concatenated, Part
from pipeline.sources.payload_reader import OpenFiles, payload_reader
from pipeline.sources.records import Groups, Reading, Records, fetch_payloads, intact, weighed
from pipeline.spec import Layout

ITERATED_RECORDS = 64  # read together when iterating
AHEAD_BYTES = 32 * 1024**2


class Dataset:
    """Records of one or several sources, opened: see Records. Also a sequence of their payloads, as
    bytes.

    dataset[i]: payload i, checked against the index; i may be negative. dataset[a:b]: a Dataset of
    these records, numbered from 0. Iterating reads ahead, in order. `take` reads several together,
    `examples` parses them.

    Threads may share it. It can be pickled if the source can; the copy, like a forked process,
    opens files of its own or reads through inherited descriptors. A pickle contains the index, 8
    bytes per record, and arrays completely.

    Reading raises RecordNumberError, an IndexError; OptionError for a record of files that can only
    be read from their front; CorruptRecordError naming the record; StorageError."""

    def __init__(self, source: Records) -> None:
        self.source = source
        self.info = source.info
        self._labels = source.info.labels
        # see Records
        self.block_starts = source.block_starts
        self.weigh = source.weigh
        self.where = source.where
        self._payload = payload_reader(source, OpenFiles())

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.source,)

    def __repr__(self) -> str:
        return f"<Dataset of {self.num_records} records: {self.info.name}>"

    @property
    def num_records(self) -> int:
        """How many records there are."""
        return self.info.num_records

    @property
    def layout(self) -> Layout:
        """What a record contains, such as the Schema of its features."""
        return self.info.layout

    @property
    def labels(self) -> Labels | None:
        """The class names: feature, base and names; None if none are stored with the data."""
        return self._labels

    def labelled_as(self, labels: Labels | None) -> "Dataset":
        """The same records for batches in which classes have these names and numbers: those of a
        model."""
        other = copy(self)
        other._labels = labels
        return other

    def __len__(self) -> int:
        return self.info.num_records

    @overload
    def __getitem__(self, number: SupportsIndex) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> "Dataset": ...
    def __getitem__(self, number: SupportsIndex | slice) -> "bytes | Dataset":
        if isinstance(number, slice):
            return self._part(number)
        return self._payload(self._checked(number))

    def __iter__(self) -> Iterator[bytes]:
        firsts = range(0, self.num_records, ITERATED_RECORDS)
        groups = (
            np.arange(first, min(first + ITERATED_RECORDS, self.num_records)) for first in firsts
        )
        for group in self.source.read(weighed(self.source, groups), AHEAD_BYTES):
            for record in group:
                yield intact(record)[0]

    def take(self, numbers: Iterable[SupportsIndex]) -> list[bytes]:
        """The payloads with these numbers. From a bucket, up to 64 requests at a time instead of
        one."""
        ids = [self._checked(number) for number in numbers]
        if ids and self.info.remote:
            return fetch_payloads(self.source, ids)
        return [self._payload(number) for number in ids]

    __getitems__ = take  # PyTorch's DataLoader calls it with the numbers of a batch

    def examples(self, keys: Iterable[str] | None = None) -> "Examples":
        """The records as a sequence of dicts with these features. None: with all that the records
        have.

        Raises OptionError for an unknown key, and for several datasets of which only some name
        their classes."""
        return Examples(self, keys)

    def read(self, groups: Groups, ahead_bytes: int = 0) -> Reading:
        """See Records."""
        return self.source.read(groups, ahead_bytes)

    def _part(self, numbers: slice) -> "Dataset":
        first, stop, step = numbers.indices(self.num_records)
        if step != 1:
            raise OptionError(
                f"a slice of records has step {step}; it must be 1. For other selections use "
                "take(numbers)."
            )
        if stop <= first:
            raise OptionError(
                f"[{first}:{stop}] selects none of {self.num_records} records, and a dataset "
                "cannot be empty."
            )
        return Dataset(Concatenated([Part(self.source, range(first, stop))]))

    def _checked(self, number: SupportsIndex) -> int:
        try:
            index = operator.index(number)
        except TypeError:
            raise OptionError(
                f"{number!r:.60} is not a record's number. Use records[i] with an integer, "
                "records[a:b], or records.take([i, j]); records.examples()[i]['key'] is a feature."
            ) from None
        if not -self.num_records <= index < self.num_records:
            raise RecordNumberError(
                f"record {index} does not exist: {self.info.name} has {self.num_records} records, "
                f"{-self.num_records} to {self.num_records - 1}."
            )
        index %= self.num_records
        if self.info.whole_files is not None:
            raise OptionError(
                f"{self.info.name}: record {index} cannot be read directly, because the files have "
                "no index and can only be read from their front. Write an index: infeed index "
                "'DIR/PATTERN' (compressed files must be rewritten first: python -m "
                "converters.tfrecord_to_gcs). Or iterate over the records in order; list(records) "
                "keeps all of them in memory."
            )
        return index


class Examples:
    """The records of a Dataset as a sequence of dicts: key -> value as stored, without TensorFlow.

    Numbers are NumPy arrays of the feature's shape and stored dtype, int64 or float32 (a scalar for
    shape ()), or of the field's dtype in the machine's byte order; a feature of variable length is
    a one-dimensional array. Bytes are bytes for shape (), or an object array of bytes. An optional
    feature that is absent is 0 or b"", or an empty array.

    Indexing, slicing, take, iterating, threads, processes and errors are those of the Dataset; also
    SchemaError naming a record that does not match the layout."""

    def __init__(self, dataset: Dataset, keys: Iterable[str] | None = None) -> None:
        _ = dataset.info.renumberings  # raises its errors before any record is read
        self.dataset = dataset
        self._parser = RecordParser(dataset.layout, keys)

    @property
    def keys(self) -> Sequence[str]:
        """The features of each dict, in order."""
        return self._parser.keys

    def __repr__(self) -> str:
        return f"<Examples of {self.dataset.info.name}: {', '.join(self.keys)}>"

    def __len__(self) -> int:
        return len(self.dataset)

    @overload
    def __getitem__(self, number: SupportsIndex) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, number: slice) -> "Examples": ...
    def __getitem__(self, number: SupportsIndex | slice) -> "dict[str, Any] | Examples":
        if isinstance(number, slice):
            return Examples(self.dataset[number], self.keys)
        return self._parsed(number, self.dataset[number])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._parsed, range(len(self)), self.dataset)

    def take(self, numbers: Iterable[SupportsIndex]) -> list[dict[str, Any]]:
        """The dicts with these numbers. See Dataset.take."""
        numbers = list(numbers)
        return list(map(self._parsed, numbers, self.dataset.take(numbers)))

    __getitems__ = take

    def _parsed(self, number: SupportsIndex, payload: bytes) -> dict[str, Any]:
        try:
            return self.dataset.info.in_common(
                self._parser(payload), operator.index(number) % len(self)
            )
        except SchemaError as e:
            where = self.dataset.where(operator.index(number) % len(self))
            raise SchemaError(f"{where}: {e}") from e
