"""What a recipe returns: batches of one host in an order that can be resumed, advanced and proven.

The trainer and every other consumer see this and nothing below it. Two threads stand behind `batches`: one owns the
reading, one runs parse and ops; `as_dataset` gives the same batches as a tf.data.Dataset."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from pipeline.background import Background
from pipeline.decode import Decoder
from pipeline.hashing import op_seeds
from pipeline.order import Position, Rows
from pipeline.records import Group, Reading, Record, Records, intact
from pipeline.shards.errors import FingerprintError, SchemaError, StallError
from pipeline.spec import ArraySpec
from pipeline.stall import checked_stall_seconds, stalled
from pipeline.tf_cpu import tf

__all__ = ["Batches", "Input", "Order"]

GROUP_BYTES = 16 * 1024**2  # read at a time
DECODING = 2  # batches that are decoded at a time, and as many that wait
Batch = dict[str, np.ndarray]


class Order(Protocol):
    """What TrainOrder and EvalOrder have in common."""

    start: Position
    num_records: int

    @property
    def steps_per_epoch(self) -> int: ...  # noqa: D102
    @property
    def settings(self) -> Mapping[str, Any]: ...  # noqa: D102
    def advance(self, position: Position, batches: int) -> Position: ...  # noqa: D102
    def remaining(self, position: Position) -> int | None: ...  # noqa: D102
    def rows(self, position: Position, ranges: tuple[range, ...]) -> Rows: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The rows of one batch as they were read; payloads and seeds are of the real rows only."""

    payloads: list[bytes]
    seeds: np.ndarray  # int32 [n, ops, 2]
    mask: np.ndarray  # float32 [host_batch]
    index: np.ndarray  # int32 [host_batch]
    crc: np.ndarray  # uint32 [host_batch]

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.payloads))


class Batches(Iterator[Batch]):
    """The batches from a position on. `close` returns at once, whatever the threads behind it wait for.

    A `next` that waits longer than stall_seconds, for reading or then for decoding, ends in a StallError."""

    def __init__(
        self, reading: Background[_Delivery], decode: Callable[[_Delivery], Batch], stall_seconds: float
    ) -> None:
        self._reading, self._stall_seconds = reading, stall_seconds
        # Two batches at a time: 1.4x of one, though each uses all cores (32x32 JPEGs, 2 cores).
        self._pool = pool = ThreadPoolExecutor(DECODING, "infeed-decode")
        futures = (pool.submit(decode, delivery) for delivery in reading)
        # One bound, here: `reading` with one too would count while no one waits, and both could end in one stall.
        self._decoded = Background(futures, limit=DECODING, name="infeed-submit", stall_seconds=stall_seconds)
        # Dropped without close: a thread may sit in a stalled `next(reading)` and would keep it alive.
        weakref.finalize(self, reading.close).atexit = False

    def __next__(self) -> Batch:
        try:
            return self._result(next(self._decoded))
        except CancelledError:
            raise StopIteration from None  # closed meanwhile
        except StallError:
            self.close()
            raise

    def _result(self, future: Future[Batch]) -> Batch:
        try:
            return future.result(self._stall_seconds)
        except TimeoutError:
            if future.done():  # at the last moment, or the error is its own
                return future.result()
        raise stalled("a batch that is being decoded ('infeed-decode')", self._stall_seconds)

    def close(self) -> None:
        """Ends the iteration. Threads end as soon as disk and TensorFlow give them control again."""
        self._reading.close()
        self._decoded.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self, timeout_seconds: float) -> bool:
        """Waits until reading and submitting have ended, at most so long each; whether they have."""
        return self._reading.join(timeout_seconds) & self._decoded.join(timeout_seconds)


class Input:
    """One host's batches of records in an order.

    Each is a dict of arrays that fit `spec`: the features, and `_mask` float32 [b] (0.0 on padding), `_index` int32
    [b] (the record's number, -1 on padding), `_crc` uint32 [b] (of the bytes that were really decoded,
    0 on padding). spec: key -> ArraySpec with the host batch first. fingerprint: names the data. expected_crc: what
    `_crc` sums to over all hosts and steps of an evaluation, modulo 2**32; None for training, which drops a tail, and
    where nothing says beforehand which bytes are due. read_ahead_bytes: what the reading thread holds at most."""

    def __init__(
        self,
        records: Records,
        order: Order,
        decoder: Decoder,
        rows: tuple[range, ...],
        *,
        expected_crc: int | None,
        read_ahead_bytes: int,
        stall_seconds: float,
    ) -> None:
        self._records, self._order, self._decoder, self._rows = records, order, decoder, rows
        self._stall_seconds = checked_stall_seconds(stall_seconds)
        # More than the split is never useful ahead.
        self.read_ahead_bytes = min(read_ahead_bytes, 4 * records.num_bytes)
        self._group_bytes = min(self.read_ahead_bytes // 4, GROUP_BYTES)
        self.spec: Mapping[str, ArraySpec] = decoder.spec
        self.num_records, self.steps_per_epoch = order.num_records, order.steps_per_epoch
        self.fingerprint, self.expected_crc = records.fingerprint, expected_crc
        self.start = order.start

    def advance(self, position: Position, batches: int) -> Position:
        """The position after so many more batches."""
        return self._order.advance(position, batches)

    def state(self, position: Position) -> dict[str, Any]:
        """The position and what its order depends on, as a small JSON dict to keep beside a checkpoint."""
        return {"fingerprint": self.fingerprint, **self._order.settings, **position._asdict()}

    def restore(self, state: Mapping[str, Any]) -> Position:
        """The inverse of `state`. Raises FingerprintError naming what differs when data or order are not the same."""
        if state.get("fingerprint") != self.fingerprint:
            raise FingerprintError(
                f"The saved position belongs to data {state.get('fingerprint')}; {self._records.name}, is "
                f"{self.fingerprint}. Give the data it was saved with, or begin again at `start`."
            )
        for name, here in self._order.settings.items():
            if name not in state or state[name] != here:
                raise FingerprintError(
                    f"The saved position has {name}={state.get(name)!r}, this input {name}={here!r}: the order "
                    f"of records is another. Pass {name}={state.get(name)!r} to go on, or begin anew at `start`."
                )
        return Position(int(state["epoch"]), int(state["records"]))

    def batches(self, position: Position | None = None) -> Batches:
        """The batches from a position on (default: the start): endless for training, one pass for evaluation.

        Errors keep their type and text. Raises CorruptRecordError and StorageError from reading; SchemaError naming
        the record that cannot be parsed or decoded; StallError."""
        return Batches(self._reading(position), self._decoded, self._stall_seconds)

    def as_dataset(self, position: Position | None = None) -> Any:
        """The same batches as a tf.data.Dataset, of a known cardinality.

        Errors come as TensorFlow's own, with the text. Dropping an iterator waits for a stalled disk, up to
        stall_seconds: `batches` does not, and is faster (no copy into tf.data)."""
        start = self.start if position is None else position
        remaining = self._order.remaining(start)
        rows = [tf.TensorSpec(self.spec[key].shape, self.spec[key].dtype) for key in ("_mask", "_index", "_crc")]

        def deliveries() -> Iterator[tuple[Any, ...]]:
            reading = self._reading(start, self._stall_seconds)
            try:
                for d in reading:
                    yield np.array(d.payloads, object), d.seeds, d.mask, d.index, d.crc
            finally:
                reading.close()

        def decode(payloads: Any, seeds: Any, mask: Any, index: Any, crc: Any) -> dict[str, Any]:
            return self._decoder.decode(payloads, seeds, index) | {"_mask": mask, "_index": index, "_crc": crc}

        dataset = tf.data.Dataset.from_generator(deliveries, output_signature=(*self._decoder.signature[:2], *rows))
        dataset = dataset.map(decode, num_parallel_calls=DECODING, deterministic=True).prefetch(DECODING)
        cardinality = tf.data.INFINITE_CARDINALITY if remaining is None else remaining
        return dataset.apply(tf.data.experimental.assert_cardinality(cardinality))

    def _reading(self, position: Position | None, stall_seconds: float | None = None) -> Background[_Delivery]:
        waiting: deque[list[Rows]] = deque()

        def wanted() -> Iterator[Group]:
            for group, num_bytes in self._groups(self.start if position is None else position):
                waiting.append(group)
                yield Group(np.concatenate([rows.record_ids[rows.record_ids >= 0] for rows in group]), num_bytes)

        reading = self._records.read(wanted(), self.read_ahead_bytes)
        return Background(
            self._deliveries(reading, waiting),
            limit=lambda: self.read_ahead_bytes - reading.held_bytes,
            cost=lambda d: d.num_bytes,
            name="infeed-read",
            stall_seconds=stall_seconds,
        )

    def _deliveries(self, reading: Reading, waiting: deque[list[Rows]]) -> Iterator[_Delivery]:
        for records in reading:
            left = iter(records)
            for rows in waiting.popleft():
                yield self._delivery(rows, list(islice(left, int((rows.record_ids >= 0).sum()))))

    def _groups(self, position: Position) -> Iterator[tuple[list[Rows], int]]:
        """Batches that are planned together, and their bytes.

        The first is one batch, so that it comes soon; groups double to 16 MiB."""
        group: list[Rows] = []
        group_bytes = target_bytes = 0
        steps = self._order.remaining(position)
        while steps is None or steps > 0:
            rows = self._order.rows(position, self._rows)
            group.append(rows)
            group_bytes += self._records.weigh(rows.record_ids[rows.record_ids >= 0])
            position = self._order.advance(position, 1)
            steps = None if steps is None else steps - 1
            if group_bytes >= target_bytes:
                yield group, group_bytes
                target_bytes = min(2 * group_bytes, self._group_bytes)
                group, group_bytes = [], 0
        if group:
            yield group, group_bytes

    def _delivery(self, rows: Rows, records: list[Record]) -> _Delivery:
        proven = [intact(record) for record in records]
        real = rows.record_ids >= 0
        crc = np.zeros(len(real), np.uint32)
        crc[real] = [record.crc for record in proven]
        seeds = op_seeds(rows.seeds[real], self._decoder.num_ops)
        payloads = [record.payload for record in proven]
        return _Delivery(payloads, seeds, real.astype(np.float32), rows.record_ids.astype(np.int32), crc)

    def _decoded(self, delivery: _Delivery) -> Batch:
        try:
            features = self._decoder(delivery.payloads, delivery.seeds, delivery.index)
        except SchemaError as e:
            raise self._blamed(delivery, e) from e
        return features | {"_mask": delivery.mask, "_index": delivery.index, "_crc": delivery.crc}

    def _blamed(self, delivery: _Delivery, error: SchemaError) -> SchemaError:
        """Finds the record that a batch failed on, by decoding one at a time: TensorFlow does not say."""
        for i, record_id in enumerate(delivery.index[delivery.index >= 0].tolist()):
            alone = np.full_like(delivery.index, -1)
            alone[0] = record_id
            try:
                self._decoder(delivery.payloads[i : i + 1], delivery.seeds[i : i + 1], alone)
            except SchemaError as e:
                return SchemaError(f"{self._records.where(record_id)}: {e}")
        return error
