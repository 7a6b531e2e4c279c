"""Grain on both sides: decoded and verified records for it, and exact batches of any Grain program.

The trainer takes Grain's datasets, loaders and iterators as they are; training_batches and
evaluation_batches say more of them. Grain itself is imported only where batches are made."""

import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from pipeline.decoding.decode import Decoder
from pipeline.decoding.op import Op
from pipeline.decoding.rng import Rng
from pipeline.errors import CorruptRecordError, OptionError, SchemaError
from pipeline.inputs.grain_batches import evaluation_batches, training_batches
from pipeline.orders.order import check_sizes
from pipeline.parsing import RecordParser
from pipeline.shards.frames import crc32c
from pipeline.sources.dataset import Dataset
from pipeline.sources.open_dataset import Data, open_dataset
from pipeline.sources.records import RecordsInfo

__all__ = ["GrainSource", "evaluation_batches", "source", "training_batches"]

# Of the threads that call `take`. The decoder has threads of its own, where these pay; grain's 16
# would wait for the GIL after every image, which triples the CPU time of small ones.
_TURN = threading.Lock()


def source(
    data: Data | Sequence[Data],
    split: str | None = None,
    *,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
) -> "GrainSource":
    """The records of open_dataset(data, split), decoded: what grain.MapDataset.source and
    grain.DataLoader take.

    ops, keys: as in eval_dataset, which delivers the same rows. An op that draws random numbers is
    refused: grain does not tell a source the epoch, so a record would be augmented identically in
    each. Use grain's random_map. TensorFlowOp counts as random.

    Raises: as open_dataset; OptionError for random ops, and for files that can only be read from
    their front; OptionError or SchemaError for options that do not suit the data."""
    records = open_dataset(data, split)
    check_sizes(records.num_records, 1)
    decoder = Decoder(records.layout, 1, ops=ops, keys=keys).renumbered(records.info.renumberings)
    opened = GrainSource(records, decoder, ops)
    with contextlib.suppress(CorruptRecordError, SchemaError):  # of a record that may not be used
        opened[0]
    return opened


class GrainSource:
    """A RandomAccessDataSource of grain. source[i]: record i, a dict of NumPy arrays and scalars.

    It contains the features, 64-bit numbers as 32-bit, and what an evaluation is proven with:
    `_index` int32 () is the record's number, `_crc` uint32 () the checksum of the bytes that were
    decoded. i may be negative.

    Threads may share a source. It can be pickled if the data and the ops can; the copy opens files
    of its own. Reading raises CorruptRecordError or SchemaError naming the record; StorageError;
    RecordNumberError, an IndexError."""

    def __init__(self, records: Dataset, decoder: Decoder, ops: Sequence[Op]) -> None:
        self._records = records
        self._decoder = decoder
        self._parse = RecordParser(records.layout, decoder.stored)
        self._rngs = [_NoRng(op) for op in ops]

    def __repr__(self) -> str:
        # a DataLoader of grain resumes only with the same one, perhaps from a copy of the data
        return f"<Source of {len(self)} records: fingerprint {self._records.info.fingerprint}>"

    @property
    def info(self) -> RecordsInfo:
        """What is known of its records, as it delivers them, for an infeed.Epoch."""
        own = self._records.info
        return replace(own, parts=(), describe=lambda: own.description)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        (payload,) = self._records.take([index])
        number = index.__index__() % len(self)
        try:
            record = self._records.info.in_common(self._parse(payload), number)
            features = self._decoder.decode_one(record, self._rngs)
        except SchemaError as e:
            raise SchemaError(f"{self._records.where(number)}: {e}") from e
        crc = np.uint32(crc32c(payload))
        return features | {"_index": np.int32(number), "_crc": crc}

    def take(self, numbers: Sequence[SupportsIndex] | np.ndarray) -> dict[str, Any]:
        """The records with these numbers as one batch: what source[i] has, as arrays [n, ...].

        Faster than one by one, and with small records several times as fast. So let grain shuffle
        and batch numbers instead of records:
        MapDataset.range(len(source)).shuffle(seed=0).batch(256).map(source.take)."""
        payloads = self._records.take(numbers)
        index = np.asarray(numbers, np.int32) % np.int32(len(self))
        seeds = np.zeros((len(index), len(self._rngs), 2), np.int32)
        try:
            with _TURN:
                rows = self._decoder(payloads, seeds, index)
        except SchemaError:
            for number in numbers:
                self[number]  # names the record
            raise
        return rows | {"_index": index, "_crc": np.array([*map(crc32c, payloads)], np.uint32)}


class _NoRng(Rng):
    """Refuses to draw for this op."""

    def __init__(self, op: Op) -> None:
        self._op = op

    def bits(self, count: int) -> NoReturn:
        raise OptionError(
            f"{self._op!r} draws random numbers. In grain they would be the same in every epoch. "
            "Leave it out of ops, and augment in grain's random_map."
        )

    @property
    def key(self) -> NoReturn:
        self.bits(2)
