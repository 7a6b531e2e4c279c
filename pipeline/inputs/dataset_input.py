"""What train_dataset and eval_dataset return: a host's batches, in an order that can be resumed and
proven.

The trainer and all other consumers use only this. Below it, batches reads in one thread and decodes
in others."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pipeline.background import checked_stall_seconds
from pipeline.checks import check_number
from pipeline.decoding.decode import Decoder
from pipeline.description import Description, renumberings
from pipeline.errors import BatchSizeError, FingerprintError, OptionError, StallError
from pipeline.inputs import worker_pool
from pipeline.inputs.batch_decoder import BatchDecoder, Serving
from pipeline.inputs.batches import (
    LEAST_EPOCH_SECONDS,
    Batch,
    Batches,
    Turns,
    batches_together,
    choose_workers,
    planned_rows,
    read_ahead,
)
from pipeline.inputs.input_info import InputInfo
from pipeline.inputs.provenance import provenance_of
from pipeline.inputs.quarantine import BadRecord, Quarantine
from pipeline.inputs.work import Order, Work, divided, pickled
from pipeline.logs import log
from pipeline.machine import num_cores
from pipeline.orders.mixing import MixOrder
from pipeline.orders.order import EvalOrder, Position, TrainOrder
from pipeline.sizes import format_bytes, format_number, format_share
from pipeline.sources.records import RECORD_OBJECT_BYTES, Records
from pipeline.spec import leaves

Workers = int | Literal["auto"]
MEASURED = 2  # times that batches are made before the number of workers is decided


class DatasetInput:
    """One host's batches of records in an order.

    Each is a dict of arrays that match `spec`: the features, and `_mask` float32 [b] (0.0 on
    padding), `_index` int32 [b] (the record's number, -1 on padding), `_crc` uint32 [b] (of the
    bytes that were decoded, 0 on padding); in training also `_seed` uint32 [b, 2] (a hash of seed,
    epoch and record, 0 on padding; device ops draw from it). For a bad record that on_error="mask"
    leaves out, `_mask` is 0.0, `_index` its number, and `_crc` its expected checksum, or 0 if that
    is unknown; features are as on padding. With "skip", everything is from its replacement.

    info: see InputInfo; the values of spec are ArraySpecs. read_ahead_bytes: the most that the
    reading thread holds. ordered: from a saved state to the order with its sizes, where none were
    given, and the bytes to read ahead."""

    def __init__(
        self,
        records: Records,
        order: Order,
        decoder: Decoder,
        rows: tuple[range, ...],
        *,
        read_ahead_bytes: int,
        stall_seconds: float,
        quarantine: Quarantine,
        start_step: int = 0,
        workers: Workers = "auto",
        ordered: Callable[[Mapping[str, Any]], tuple[TrainOrder | MixOrder, int]] | None = None,
    ) -> None:
        self._records = records
        self._order = order
        self._ordered = ordered
        self._rows = rows
        self._decoder = decoder = decoder.renumbered(records.info.renumberings)
        self._quarantine = quarantine
        self._workers = workers
        self._stall_seconds = checked_stall_seconds(stall_seconds)
        check_number(
            "read_ahead_bytes", read_ahead_bytes, at_least=0, more="; 0 reads one batch ahead"
        )
        source = records.info
        self._allow(read_ahead_bytes)
        trains = not isinstance(order, EvalOrder)
        self.info = InputInfo(
            spec=decoder.spec,
            fingerprint=source.fingerprint,
            start=order.advance(order.start, start_step),
            num_records=order.num_records,
            steps_per_epoch=order.steps_per_epoch,
            expected_crc=None if trains else source.crc_sum,
            global_batch=order.global_batch,
            endless=order.remaining(order.start) is None,
            on_error=quarantine.on_error,
            quarantine=quarantine,
            verify_command=source.verify_command,
            totals=source.totals,
            provenance=provenance_of(records, order, quarantine.on_error) if trains else None,
            description=source.description,
            copies=None if trains else source.copies,
            name=source.name,
        )
        if workers != "auto":
            more = '; 0 makes the batches in this process. "auto" decides it'
            check_number("workers", workers, at_least=0, more=more)
        host_rows = sum(map(len, rows))
        if not host_rows:
            raise BatchSizeError(
                f"{source.name}: hosts= gives this host no row of the batch. Each needs one."
            )
        row_bytes = sum(spec.num_bytes for _, spec in leaves(decoder.spec)) / host_rows
        self._row_bytes = max(row_bytes, source.num_bytes / source.num_records)
        self._decode = BatchDecoder(records, decoder, quarantine, host_rows)
        if workers and workers != "auto":  # raises its errors before any record is read
            pickled(self._work(self.info.start, workers))
        epoch = ""  # a mixture has none
        if not isinstance(order, MixOrder):
            steps = order.steps_per_epoch
            epoch = f"{steps} batch{'es' * (steps != 1)} of {order.global_batch} per epoch, "
        log.info(
            "%s: %d records, %sup to %s read ahead",
            source.name,
            order.num_records,
            epoch,
            format_bytes(self.read_ahead_bytes),
        )

    def __repr__(self) -> str:
        batch = self._order.global_batch
        name = self._records.info.name
        return f"<DatasetInput of {self.num_records} records in batches of {batch}: {name}>"

    def __iter__(self) -> Batches:
        """The batches from the start, as batches() returns them."""
        return self.batches()

    @property
    def spec(self) -> Mapping[str, Any]:
        """Key -> ArraySpec, whose first dimension is the host batch."""
        return self.info.spec

    @property
    def num_records(self) -> int:
        """Records of an epoch, over all hosts."""
        return self._order.num_records

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self._order.steps_per_epoch

    @property
    def start(self) -> Position:
        """The position of the first batch."""
        return self.info.start

    @property
    def quarantine(self) -> tuple[BadRecord, ...]:
        """The bad records that this host has met so far, by number, including batches made
        ahead."""
        return tuple(self.info.quarantine)

    def advance(self, position: Position, batches: int) -> Position:
        """The position that many batches later."""
        return self._order.advance(position, batches)

    def remaining(self, position: Position) -> int | None:
        """The number of batches from a position on; None if they never end."""
        return self._order.remaining(position)

    def state(self, position: Position) -> dict[str, Any]:
        """The position and what its order depends on, as a small JSON dict to save with a
        checkpoint."""
        return {"fingerprint": self.info.fingerprint, **self._order.settings, **position._asdict()}

    def restore(self, state: Mapping[str, Any]) -> Position:
        """The inverse of `state`. From then on, sizes of the order that were not given are those of
        the state, so that other defaults change no run that has begun.

        Raises FingerprintError naming the difference if data or order have changed."""
        if state.get("fingerprint") != self.info.fingerprint:
            raise FingerprintError(
                f"The saved position belongs to data {state.get('fingerprint')}; that of "
                f"{self._records.info.name} is {self.info.fingerprint}. Give the data that it was "
                "saved with, or start over with batches()."
            )
        order, ahead_bytes = self._ordered(state) if self._ordered else (self._order, 0)
        for name, ours in order.settings.items():
            if state.get(name) != ours:
                raise FingerprintError(
                    f"{_difference(name, state.get(name), ours)} Or start over with batches()."
                )
        if not isinstance(order, EvalOrder):
            self._order = order
            self._allow(ahead_bytes)
            provenance = provenance_of(self._records, order, self._quarantine.on_error)
            self.info = replace(self.info, provenance=provenance)
        return Position(int(state["epoch"]), int(state["records"]))

    def batches(self, position: Position | None = None) -> Batches:
        """The batches from a position on (default: the start): endless for training, one pass for
        evaluation.

        They raise StorageError from reading; StallError; and for bad records CorruptRecordError,
        SchemaError naming the record that cannot be parsed or decoded, or BadRecordsError."""
        position = self.start if position is None else position
        if self._workers == "auto":
            worker_pool.check_outside()
            steps = MEASURED * self._together(0)
            rest = partial(self._after_the_first, self.advance(position, steps))
            return self._in_threads(position, steps, rest)
        return self._in_workers(position) or self._in_threads(position)

    def _allow(self, read_ahead_bytes: int) -> None:
        # Reading ahead more than the split is never useful.
        source = self._records.info
        most = 4 * (source.num_bytes + RECORD_OBJECT_BYTES * source.num_records)
        self._most_bytes = read_ahead_bytes
        self.read_ahead_bytes = min(read_ahead_bytes, most)

    def _after_the_first(self, position: Position) -> tuple[Batch, Batches] | None:
        """The batch at the position and those that follow, made by workers if they pay."""
        # Workers that nobody asked for may fail, such as on a module that only this process has.
        if self._workers == "auto":
            self._workers = self._chosen()
        try:
            batches = self._in_workers(position)
            batch = next(batches, None) if batches else None
        except StallError:
            raise
        except Exception as error:
            log.warning(
                "%s: the first batch of worker processes failed, so threads of this process make "
                "the batches: %s",
                self._records.info.name,
                error,
            )
            self._workers = 0
            return None
        return (batch, batches) if batches and batch else None

    def _chosen(self) -> int:
        """The number of workers, which is logged unless the data are small."""
        cost = self._decode.cost
        host_rows = self.spec["_mask"].shape[0]
        records = self.num_records * host_rows // self._order.global_batch
        name = self._records.info.name
        workers = choose_workers(num_cores(), host_rows, records, cost)
        try:
            if workers:
                pickled(self._work(self.start, workers))
        except OptionError as error:
            log.info("%s: batches are made in threads of this process: %s", name, error)
            return 0
        if workers or records * cost.seconds >= LEAST_EPOCH_SECONDS:
            share = cost.gil_share
            log.info(
                "%s: %s make the batches (%d cores, %s s per record%s)",
                name,
                f"{workers} worker processes" if workers else "threads of this process",
                num_cores(),
                format_number(cost.seconds),
                "" if share is None else f", {format_share(share)} of one's time with the GIL held",
            )
        return workers

    def _in_workers(self, position: Position) -> Batches | None:
        workers = self._workers
        if workers == 0 or isinstance(workers, str):
            return None
        return worker_pool.WorkerBatches(self._work(position, workers), self._quarantine)

    def _in_threads(self, position: Position, *after: Any) -> Batches:
        """after: `count` and `rest`, as of Batches."""
        turns = Turns()
        together = self._together(0)
        planned = planned_rows(self._order, position, self._rows, together)
        reading = read_ahead(self._records, planned, self.read_ahead_bytes, turns)
        return Batches(reading, self._decode, self._stall_seconds, turns, together, *after)

    def _together(self, workers: int) -> int:
        """How many batches are made together, by each of the workers."""
        rows = -(-self.spec["_mask"].shape[0] // max(1, workers))
        return batches_together(rows, self._row_bytes, self._most_bytes)

    def described_as(
        self,
        model: Description,
        target: Mapping[str, int],
        *,
        strict: bool,
        same_classes: bool = False,
    ) -> "DatasetInput":
        """These batches with the numbers of a model's description, to which classes and categories
        are mapped by name.

        Categories of inputs that the model has never seen are missing; `_unseen`, int32 [b], then
        has how many there are in a row. target, strict, same_classes: as for renumberings, which
        says what this raises."""
        assert self.info.description is not None
        by = renumberings(
            model,
            self._records.info.sources,
            self._decoder.stored,
            target,
            strict=strict,
            same_classes=same_classes,
        )
        other = copy(self)
        other._decoder = self._decoder.renumbered(by)
        other._decode = BatchDecoder(
            self._records, other._decoder, self._quarantine, self.spec["_mask"].shape[0]
        )
        other.info = replace(self.info, spec=other._decoder.spec, description=model)
        return other

    def serving(self, keys: Sequence[str]) -> Serving:
        """What an exported model needs to decode records to these features of the batch, by their
        flat keys."""
        return Serving(self._records, self._decoder.rows_of(keys))

    def _work(self, position: Position, workers: int) -> Work:
        parts = divided(self._rows, workers)
        return Work(
            self._records,
            self._order,
            self._decoder,
            parts,
            position,
            self._together(workers),
            threads=max(1, num_cores() // len(parts)),
            read_ahead_bytes=self.read_ahead_bytes // len(parts),
            stall_seconds=self._stall_seconds,
            on_error=self._quarantine.on_error,
            max_bad_records=self._quarantine.max_bad_records,
        )


def _difference(name: str, saved: Any, ours: Any) -> str:
    """How a saved position disagrees with an order, and what to do."""
    if saved is None:
        kind = {"mixture": "training on a mixture", "num_records": "an evaluation"}.get(
            name, "training on one source"
        )
        return (
            f"The saved position has no {name}: it is not from {kind}, as this input is. Give what "
            "it belongs to."
        )
    if name == "mixture":
        return (
            "The saved position is from a mixture with other weights, block_records or "
            "window_records, so the order of records differs. Give those that it was saved with. "
            "The default of window_records depends on global_batch, in steps of 1,024."
        )
    return (
        f"The saved position has {name}={saved!r}, this input {name}={ours!r}: the order of "
        f"records differs. Pass {name}={saved!r} to train_dataset to resume."
    )
