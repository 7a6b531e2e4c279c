"""What a recipe returns: batches of one host in an order that can be resumed, advanced and proven.

The trainer and every other consumer see this and nothing below it: delivery reads, assembly decodes, and batches runs
both in threads."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from pipeline.decoding.decode import Decoder
from pipeline.inputs.assembly import Assembly
from pipeline.inputs.bad_records import BadRecord, Quarantine
from pipeline.inputs.batches import DECODING, Batches
from pipeline.inputs.delivery import read_ahead
from pipeline.orders.order import Position, Rows
from pipeline.shards.errors import FingerprintError
from pipeline.sources.records import RECORD_OBJECT_BYTES, Records
from pipeline.stall import checked_stall_seconds
from pipeline.tf_cpu import tf

__all__ = ["Batches", "Input", "Order"]


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


class Input:
    """One host's batches of records in an order.

    Each is a dict of arrays that fit `spec`: the features, and `_mask` float32 [b] (0.0 on padding), `_index` int32
    [b] (the record's number, -1 on padding), `_crc` uint32 [b] (of the bytes that were really decoded, 0 on padding);
    in training also `_seed` uint32 [b, 2] (a hash of seed, epoch and record, 0 on padding; device ops draw from it).
    Of a bad record that on_error="mask" leaves out, `_mask` is 0.0, `_index` its number and `_crc` what is known of it
    beforehand, or 0; features are as on padding. With "skip", all is of the record that stands in for it.

    spec: key -> ArraySpec with the host batch first. fingerprint: names the data. expected_crc: what
    `_crc` sums to over all hosts and steps of an evaluation, modulo 2**32; None for training, which drops a tail, and
    where nothing says beforehand which bytes are due. read_ahead_bytes: what the reading thread holds at most.
    on_error: see the recipes."""

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
        quarantine: Quarantine,
    ) -> None:
        self._records, self._order, self._rows = records, order, rows
        self._quarantine, self._assembly = quarantine, Assembly(records, decoder, quarantine)
        self._stall_seconds = checked_stall_seconds(stall_seconds)
        # More than the split is never useful ahead.
        split_bytes = records.num_bytes + RECORD_OBJECT_BYTES * records.num_records
        self.read_ahead_bytes = min(read_ahead_bytes, 4 * split_bytes)
        self.spec: Mapping[str, Any] = decoder.spec
        self.num_records, self.steps_per_epoch = order.num_records, order.steps_per_epoch
        self.fingerprint, self.expected_crc = records.fingerprint, expected_crc
        self.start, self.on_error = order.start, quarantine.on_error

    @property
    def quarantine(self) -> tuple[BadRecord, ...]:
        """The bad records that this host has met so far, also in batches that were made ahead, by number."""
        return self._quarantine.records

    @property
    def verify_command(self) -> str | None:
        """The command that names damaged records of this data; None where no manifest describes them."""
        return self._records.verify_command

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
                f"{self.fingerprint}. Give the data that it was saved with, or start over with batches()."
            )
        for name, here in self._order.settings.items():
            if state.get(name) != here:
                raise FingerprintError(f"{_difference(name, state.get(name), here)} Or start over with batches().")
        return Position(int(state["epoch"]), int(state["records"]))

    def batches(self, position: Position | None = None) -> Batches:
        """The batches from a position on (default: the start): endless for training, one pass for evaluation.

        Errors keep their type and text. Raises StorageError from reading; StallError; for bad records
        CorruptRecordError, SchemaError naming the one that cannot be parsed or decoded, or BadRecordsError."""
        reading = read_ahead(self._records, self._planned(position), self.read_ahead_bytes)
        return Batches(reading, self._assembly, self._stall_seconds)

    def as_dataset(self, position: Position | None = None) -> Any:
        """The same batches as a tf.data.Dataset, of a known cardinality.

        Errors come as TensorFlow's own, with the text. Dropping an iterator waits for a stalled disk, up to
        stall_seconds: `batches` does not, and is faster (no copy into tf.data)."""
        remaining = self._order.remaining(self.start if position is None else position)
        signature = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), dict(self.spec))

        def batches() -> Iterator[Any]:
            made = self.batches(position)
            try:
                yield from made
            finally:
                made.close()

        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(DECODING)
        cardinality = tf.data.INFINITE_CARDINALITY if remaining is None else remaining
        return dataset.apply(tf.data.experimental.assert_cardinality(cardinality))

    def _planned(self, position: Position | None) -> Iterator[Rows]:
        position = self.start if position is None else position
        steps = self._order.remaining(position)
        for _ in itertools.count() if steps is None else range(steps):
            yield self._order.rows(position, self._rows)
            position = self._order.advance(position, 1)


def _difference(name: str, there: Any, here: Any) -> str:
    """What a saved position and an order disagree on, and the way on."""
    if there is None:
        kind = {"mixture": "training on a mixture", "num_records": "an evaluation"}.get(name, "training on one source")
        return f"The saved position has no {name}: it is not of {kind}, as this input is. Give what it belongs to."
    if name == "mixture":
        return (
            "The saved position is of a mixture with other weights, block_records or window_records: the order of "
            "records is another. Give those that it was saved with. Where window_records was left out, it follows "
            "from global_batch, too: the saved batch is of another number of 1,024s."
        )
    return (
        f"The saved position has {name}={there!r}, this input {name}={here!r}: the order of records is another. Pass "
        f"{name}={there!r} to train_dataset to resume."
    )
