"""The order of records: a pure function of (seed, position), the same for any number of hosts.

A DatasetInput asks it for the record ids of any rows of any batch; resuming is free, and the state
is two integers. Pure NumPy: no I/O, no manifest, no TensorFlow."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from pipeline.checks import check_choice, check_number
from pipeline.errors import BatchSizeError, EmptySplitError, OptionError
from pipeline.orders.shuffle import Shuffle, record_seeds

MAX_RECORDS = 2**31 - 1  # `_index` is int32: JAX disables int64 by default


class Position(NamedTuple):
    """Where a run is: the epoch, and how many of its records each stream has delivered.

    It is not a step, because the batch size may change between runs."""

    epoch: int
    records: int


class Rows(NamedTuple):
    """Some rows of one batch, or of several, batch after batch, in row order."""

    record_ids: np.ndarray  # int64 [n], -1 on padding
    epochs: np.ndarray  # int64 [n]
    seed: int  # of the order

    @property
    def seeds(self) -> np.ndarray:
        """uint64 [n]: a hash of (seed, epoch, record id), computed on every access."""
        return record_seeds(self.seed, self.epochs, self.record_ids)


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


class BatchOrder:
    """The base of all orders. By default they are endless."""

    start = Position(0, 0)
    num_records: int
    global_batch: int

    @property
    def steps_per_epoch(self) -> int:
        """The fewest batches with as many rows as there are records: known without reading."""
        return -(-self.num_records // self.global_batch)

    def remaining(self, position: Position) -> int | None:
        """The number of batches from a position on; None if there is always another."""


class TrainOrder(BatchOrder):
    """An endless shuffled order of batches.

    Blocks of K consecutive records are permuted; the permuted sequence is cut into C streams; each
    stream is shuffled inside windows of W records; row r of a batch of B comes from stream r // (B
    / C). Each host asks for its own rows, so batches cannot depend on the number of hosts.
    block_starts: where blocks start, if not every block_records."""

    def __init__(
        self,
        num_records: int,
        global_batch: int,
        *,
        seed: int = 0,
        block_records: int,
        block_starts: range | np.ndarray | None = None,
        streams: int,
        window_records: int,
        epochs: Literal["drop", "span"] = "drop",
    ) -> None:
        check_sizes(num_records, global_batch)
        check_choice("epochs", epochs, ("drop", "span"))
        if epochs == "drop" and num_records < global_batch:
            raise BatchSizeError(
                f"global_batch={global_batch} is larger than the split's {num_records} records, so "
                f"no batch fits in an epoch. Use a batch of at most {num_records}, or "
                "epochs='span' (batches cross epochs)."
            )
        check_number("block_records", block_records, at_least=1)
        self.num_records = num_records
        self.global_batch = global_batch
        self.seed = seed
        self.epochs = epochs
        check_streams(streams, global_batch, num_records)
        self.streams = streams
        self.block_records = block_records
        self.window_records = window_records
        starts = range(0, num_records, block_records) if block_starts is None else block_starts
        self.shuffle = Shuffle(
            num_records, starts, seed=seed, streams=streams, window_records=window_records
        )
        self._stream_rows = global_batch // streams
        self._shortest = num_records // streams  # records per epoch of the shortest stream

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch: N // B for "drop"; for "span" the fewest that deliver N records."""
        if self.epochs == "drop":
            return self.num_records // self.global_batch
        return super().steps_per_epoch

    @property
    def settings(self) -> dict[str, int | str]:
        """Everything that the order depends on except the data. Orders with equal settings can
        exchange positions."""
        names = ("seed", "streams", "block_records", "window_records", "epochs")
        return {name: getattr(self, name) for name in names}

    def advance(self, position: Position, batches: int) -> Position:
        """The position that many batches later. With epochs="drop", the end of an epoch that is too
        short for a batch counts as the beginning of the next one, also where batches is 0."""
        position = self._resolve(position)
        if self.epochs == "span":
            total = position.epoch * self._shortest + position.records + batches * self._stream_rows
            return Position(*divmod(total, self._shortest))
        left = (self._shortest - position.records) // self._stream_rows
        if batches < left:
            return Position(position.epoch, position.records + batches * self._stream_rows)
        epochs, steps = divmod(batches - left, self.steps_per_epoch)
        return Position(position.epoch + 1 + epochs, steps * self._stream_rows)

    def rows(self, position: Position, ranges: Sequence[range], batches: int = 1) -> Rows:
        """These row ranges of the batch at a position, in the order given, then of the batches that
        follow."""
        groups = list[np.ndarray]()
        while batches:
            position = self._resolve(position)
            here = batches
            if self.epochs == "drop":  # the next epoch begins with a batch of its own
                here = min(batches, (self._shortest - position.records) // self._stream_rows)
            groups.append(
                rows_of_batches(partial(self._records, position), ranges, self._stream_rows, here)
            )
            position = self.advance(position, here)
            batches -= here
        ids, epochs = np.concatenate(groups, axis=1)
        return Rows(ids, epochs, self.seed)

    def _resolve(self, position: Position) -> Position:
        # A position saved with another batch size may leave less than one of our batches in its
        # epoch.
        if self.epochs == "drop" and position.records + self._stream_rows > self._shortest:
            return Position(position.epoch + 1, 0)
        return position

    def _records(
        self, position: Position, stream: int, first: int, count: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        epoch = position.epoch
        at = position.records + first
        # streams differ in length by one, so each enters its next epoch separately
        if self.epochs == "span":
            epoch, at = divmod(position.epoch * self._shortest + at, self.shuffle.length(stream))
        return self.shuffle.records(stream, epoch, at, count)


def rows_of_batches(
    records: Callable[[int, int, int], Iterable[tuple[Any, np.ndarray]]],
    ranges: Iterable[range],
    rows_per_stream: int,
    batches: int,
) -> np.ndarray:
    """int64 [2, n]: the ids and the epochs of these row ranges of a batch, then of the batches that
    follow.

    records(stream, first, count): (epochs, ids) of a stream's records from place `first` on. A
    stream is asked once for all batches, because asking costs as much as 20 records."""
    tables = [np.empty((2, batches, 0), np.int64)]
    for rows in ranges:
        row = rows.start
        while row < rows.stop:
            stream, first = divmod(row, rows_per_stream)
            count = min(rows.stop - row, rows_per_stream - first)
            table = np.empty((2, batches * rows_per_stream), np.int64)
            at = 0
            for epochs, ids in records(stream, first, (batches - 1) * rows_per_stream + count):
                table[0, at : at + len(ids)] = ids
                table[1, at : at + len(ids)] = epochs
                at += len(ids)
            tables.append(table.reshape(2, batches, rows_per_stream)[:, :, :count])
            row += count
    return np.concatenate(tables, axis=2).reshape(2, -1)


class EvalOrder(BatchOrder):
    """Every record once, in data order: row r of step t is record t * B + r, or -1 (padding) past
    the end."""

    def __init__(self, num_records: int, global_batch: int) -> None:
        check_sizes(num_records, global_batch)
        self.num_records = num_records
        self.global_batch = global_batch

    @property
    def settings(self) -> dict[str, int | str]:
        """Everything that the order depends on except the data."""
        return {"num_records": self.num_records}

    def remaining(self, position: Position) -> int:
        """Batches from a position to the end."""
        return max(0, -(-(self.num_records - position.records) // self.global_batch))

    def advance(self, position: Position, batches: int) -> Position:
        """The position that many batches later."""
        return Position(0, position.records + batches * self.global_batch)

    def rows(self, position: Position, ranges: Iterable[range], batches: int = 1) -> Rows:
        """These row ranges of the batch at a position, then of those that follow, with seed and
        epoch 0."""
        begins = position.records + self.global_batch * np.arange(batches)
        ids = (
            begins[:, None] + np.concatenate([np.asarray(rows, np.int64) for rows in ranges])
        ).ravel()
        ids = np.where(ids < self.num_records, ids, -1)
        return Rows(ids, np.zeros_like(ids), seed=0)


def check_sizes(num_records: int, global_batch: int) -> None:
    """Raises unless there are records, few enough for int32 numbers, and the batch is positive."""
    if num_records <= 0:
        raise EmptySplitError(
            f"The split has {num_records} records: there is nothing to read. Choose another split."
        )
    if num_records > MAX_RECORDS:
        raise OptionError(
            f"The split has {num_records} records; `_index` is int32, so at most {MAX_RECORDS}. "
            "Split it in two."
        )
    if global_batch < 1:
        raise BatchSizeError(f"global_batch={global_batch} must be at least 1.")


def check_streams(streams: int, global_batch: int, num_records: int) -> None:
    """Raises unless the streams divide the batch and each has a record."""
    allowed: Sequence[int] = [d for d in divisors(global_batch) if d <= num_records]
    if streams in allowed:
        return
    nearest = sorted(allowed, key=lambda d: abs(d - streams))[:2]
    raise OptionError(
        f"streams={streams} must divide global_batch={global_batch} and be at most the split's "
        f"{num_records} records. Nearest that do: {', '.join(map(str, sorted(nearest)))}."
    )
