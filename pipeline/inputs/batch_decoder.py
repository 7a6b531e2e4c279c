"""The decoding half of a DatasetInput: turns the records read for a batch into the batch, even if
some are bad.

Batches without bad records are decoded together. In others, bisection finds the bad ones. `Serving`
is what an exported model needs of it."""

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from pipeline.decoding.decode import Decoder
from pipeline.decoding.rows import RowDecoder, parser_of
from pipeline.errors import BadRecordsError, CorruptRecordError, SchemaError
from pipeline.inputs.batches import Batch, Cost, Delivery
from pipeline.inputs.provenance import stand_ins
from pipeline.inputs.quarantine import BadRecord, Quarantine
from pipeline.orders.shuffle import device_seeds, op_seeds, record_seeds
from pipeline.shards.schema import Schema
from pipeline.sources.records import Proven, Record, Records, fetch, fetch_payloads, intact
from pipeline.spec import ArraySpec, feature_specs, mapped

# to make batches in: about, and before each is made alone instead
TOGETHER_SECONDS, MOST_SECONDS = (0.02, 0.5)
MOST_FETCHED = 64  # candidates to replace a bad record, fetched together
Bad = CorruptRecordError | SchemaError


@dataclass(eq=False)
class BatchDecoder:
    """Makes the batches of `rows` rows of each delivery. Threads may share it.

    Raises, depending on on_error: CorruptRecordError, SchemaError naming the record,
    BadRecordsError."""

    records: Records
    decoder: Decoder
    quarantine: Quarantine
    rows: int
    _seconds: float = TOGETHER_SECONDS  # per batch, lately

    @property
    def cost(self) -> Cost:
        """What a record took lately, without reading."""
        return Cost(self._seconds / self.rows, self.decoder.gil_share)

    def __call__(self, delivery: Delivery) -> Iterator[Batch]:
        """Its batches in order, as DatasetInput describes them."""
        return itertools.chain.from_iterable(self.parts(delivery))

    def parts(self, delivery: Delivery) -> Iterator[Iterator[Batch]]:
        """Its batches in the parts in which they are made: as many together as lately took about 20
        ms, but one by one where a record is bad, or an op raises an error or takes longer. So no
        batch waits for the records of others."""
        at = 0
        end = len(delivery.rows.record_ids)
        rows = self.rows
        while at < end:
            count = max(1, min((end - at) // rows, int(TOGETHER_SECONDS / self._seconds)))
            part = delivery.part(at, at + count * rows)
            begins = range(0, count * rows, rows)
            if count > 1 and (batch := self._together(part)):
                yield (mapped(itemgetter(slice(begin, begin + rows)), batch) for begin in begins)
            else:
                for begin in begins:
                    yield iter([self._alone(part.part(begin, begin + rows))])
            at += count * rows

    def _together(self, part: Delivery) -> Batch | None:
        """All its batches as one; None if they have to be made one by one."""
        if not part.intact:
            return None
        try:
            return self._timed(part, time.monotonic() + MOST_SECONDS)
        except Exception:  # each batch has its own: those before are good
            return None

    def _alone(self, part: Delivery) -> Batch:
        if not part.intact:
            return self._despite_bad_rows(part)
        try:
            return self._timed(part)
        except SchemaError as e:
            return self._despite_bad_rows(part, e)

    def _timed(self, part: Delivery, until: float = math.inf) -> Batch:
        began = time.monotonic()
        ids = part.rows.record_ids
        batch = self._batch(ids, part.rows.seeds, ids >= 0, part.records, until)
        self._seconds = (time.monotonic() - began) * self.rows / len(ids) + 1e-9
        return batch

    def _batch(
        self,
        ids: np.ndarray,
        seeds: np.ndarray,
        counted: np.ndarray,
        records: Sequence[Any],
        until: float = math.inf,
    ) -> Batch:
        """ids, seeds: of every row. counted (bool): the rows of these intact records, in order;
        other rows are padding."""
        index = ids.astype(np.int32)
        crc = np.zeros(len(ids), np.uint32)
        payloads, crc[counted] = zip(*records, strict=True) if records else ((), ())
        op_seed = op_seeds(seeds[counted], self.decoder.num_ops)
        features = self.decoder(payloads, op_seed, np.where(counted, index, -1), until)
        reserved = {"_mask": counted.astype(np.float32), "_index": index, "_crc": crc}
        if "_seed" in self.decoder.spec:
            reserved["_seed"] = device_seeds(seeds) * counted[:, None].astype(np.uint32)
        return features | reserved

    def _despite_bad_rows(self, delivery: Delivery, error: SchemaError | None = None) -> Batch:
        """error: from decoding all rows together, if that was tried."""
        rows = delivery.rows
        ids = rows.record_ids.copy()
        seeds = rows.seeds
        records = dict(zip(np.flatnonzero(ids >= 0).tolist(), delivery.records, strict=True))
        bad_rows = self._bad_rows(ids, seeds, records)
        if self.quarantine.on_error == "raise":
            for _, first in bad_rows:
                # `error` says the same, without the record
                raise first from (error and error.__cause__)
        bad = dict(bad_rows)
        if error and not bad:
            raise error  # the rows fail only together
        self._note((int(ids[row]), e) for row, e in bad.items())
        if self.quarantine.on_error == "skip":
            for row in bad:
                ids[row], seeds[row], records[row] = self._stand_in(
                    int(ids[row]), rows.seed, rows.epochs[row]
                )
            return self._batch(ids, seeds, ids >= 0, list(records.values()))
        counted = ids >= 0
        counted[list(bad)] = False
        good = [intact(record) for row, record in records.items() if row not in bad]
        batch = self._batch(ids, seeds, counted, good)
        crcs = self.records.info.crcs
        if crcs is not None:
            # The checksums an evaluation expects of the rows that it leaves out, not those found.
            batch["_crc"][list(bad)] = crcs[ids[list(bad)]]
        return batch

    def _bad_rows(
        self, ids: np.ndarray, seeds: np.ndarray, records: Mapping[int, Record]
    ) -> Iterator[tuple[int, Bad]]:
        """Yields the bad rows and why they are bad, damaged ones first. Lazy: it searches as it is
        iterated."""
        intact_records = {}
        for row, record in records.items():
            if isinstance(record, CorruptRecordError):
                yield row, record
            else:
                intact_records[row] = record
        parts = [list(intact_records)] if intact_records else []
        while parts:
            rows = parts.pop()
            counted = np.zeros(len(ids), bool)
            counted[rows] = True
            try:
                self._batch(ids, seeds, counted, [intact_records[row] for row in rows])
            except SchemaError as e:
                middle = len(rows) // 2
                if middle:
                    parts += [rows[middle:], rows[:middle]]
                else:
                    yield rows[0], SchemaError(f"{self.records.where(int(ids[rows[0]]))}: {e}")

    def _stand_in(
        self, record_id: int, seed: int, epoch: np.int64
    ) -> tuple[int, np.uint64, Proven]:
        """The next good record of the same source, with its seed for that epoch.

        It depends only on the data, not on earlier batches, so every host and every resumed run
        finds the same one."""
        candidates = stand_ins(self.records.info.source_starts.tolist(), record_id)
        size = 1  # the candidates are fetched in growing groups: damage is rarely a single record
        while numbers := list(itertools.islice(candidates, size)):
            for number, record in zip(numbers, fetch(self.records, np.array(numbers)), strict=True):
                ids = np.array([number])
                seeds = record_seeds(seed, np.array([epoch]), ids)
                bad = dict(self._bad_rows(ids, seeds, {0: record}))
                if not bad:
                    return number, seeds[0], intact(record)
                self._note([(number, bad[0])])
            size = min(2 * size, MOST_FETCHED)
        raise BadRecordsError(
            f"{self.records.where(record_id)} is bad, and no other record can replace it, because "
            "all records of its source are bad. Check the ops and keys, or convert the data again."
        )

    def _note(self, bad: Iterable[tuple[int, Bad]]) -> None:
        self.quarantine.add(
            [BadRecord(number, self.records.where(number), str(error)) for number, error in bad]
        )


class Serving:
    """What an exported model needs of an input: its records as they are stored, and how they are
    decoded.

    rows: makes the features that the model takes. stored: the features of a record from which it
    makes them, key -> ArraySpec; None if one of them has no fixed shape. kind: "examples" if a
    record is a tf.train.Example, else "records"."""

    def __init__(self, records: Records, rows: RowDecoder) -> None:
        self.records = records
        self.rows = rows
        specs = {key: feature_specs(rows.layout)[key] for key in rows.stored}
        fixed = all(None not in spec.shape for spec in specs.values())
        self.stored: Mapping[str, ArraySpec] | None = specs if specs and fixed else None
        self.kind = (
            "examples" if isinstance(rows.layout, Schema) and not rows.layout.opaque else "records"
        )

    def payloads(self, record_ids: Sequence[int]) -> list[bytes]:
        """The bytes of these records. Raises CorruptRecordError for a damaged one, and
        StorageError."""
        return fetch_payloads(self.records, record_ids)

    def stored_features(self, payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The features `stored` of these records; none if that is None."""
        keys = list(self.stored or {})
        parsed = parser_of(self.rows.layout, keys)(payloads)
        return {key: np.asarray(column) for key, column in parsed.items()}
