"""The records of training steps: what each step saw, and where it is (shard, offset, key and
label).

The order is a pure function of (seed, position), so the start of a run and its settings are enough.
Bad records, which depend on the data, are in the history. To know more than numbers, the sources of
the run's input are opened again. Needs neither JAX nor TensorFlow."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import CheckpointError, InfeedError, printable
from pipeline.inputs.provenance import Origin, reopened, restored_order, stand_ins
from pipeline.logs import logger
from pipeline.orders.order import Position
from pipeline.shards.example_decoding import decode_example
from pipeline.sources.indexed_records import FILE_NAME_KEYS, IndexedRecords, key_of
from pipeline.sources.records import fetch
from trainer.reports.segments import REMEDY, History, Segment, segment_of
from trainer.reports.workdir import SEGMENTS

log = logger("trainer")

NAMES = (*FILE_NAME_KEYS, "filename", "key", "id", "name")  # features that identify a record


@dataclass(frozen=True)
class SeenBatch:
    """The global batch of a step, in row order; each array has an entry per row.

    origins: the sources of the input, in the order of their records' numbers; the same object for
        steps of one run.
    record_ids: int64, the numbers of the records in the input, as `_index` had them.
    epochs: int64, of each record.
    replaced: int64, the bad record that a row had been planned for, -1 if there was none.
    masked: bool, whether the row is a bad record that was left out."""

    step: int
    origins: Sequence[Origin]
    record_ids: np.ndarray
    epochs: np.ndarray
    replaced: np.ndarray
    masked: np.ndarray


def seen_batches(history: History, steps: range, workdir: str) -> Iterator[SeenBatch]:
    """The batches of these steps, in order.

    Raises what `segment_of` raises, and CheckpointError where the input of a run does not tell what
    it read."""
    trace: _Trace | None = None
    for step in steps:
        segment = segment_of(history, step, workdir)
        provenance = segment.start.input
        if provenance is None:
            raise CheckpointError(
                f"the run that trained step {step} read an input that does not tell where its "
                "records come from: an iterable, or an Input without `provenance`. Only inputs "
                "made by train_dataset can be traced."
            )
        try:
            if trace is None or trace.segment is not segment:
                trace = _Trace(segment, provenance)
            batch = trace.batch(step)
        except Exception as e:  # the line may contain anything
            raise CheckpointError(
                f"{workdir}/{SEGMENTS}: the start after step {segment.start.step} has no valid "
                f"input ({e!r}). {REMEDY}"
            ) from e
        yield batch


class _Trace:
    """The batches of the run of a segment."""

    def __init__(self, segment: Segment, provenance: Mapping[str, Any]) -> None:
        self.segment = segment
        self._provenance = provenance
        self._order = restored_order(provenance["order"])
        self._origins = msgspec.convert(provenance["sources"], list[Origin])
        counts = [len(range(origin.first, origin.stop)) for origin in self._origins]
        if sum(counts) != self._order.num_records:
            raise ValueError("its sources have another number of records")
        self._on_error = provenance["on_error"]
        self._bad = segment.bad_records

    def batch(self, step: int) -> SeenBatch:
        rows = self._order.rows(self._position(step), [range(self._order.global_batch)])
        ids = rows.record_ids
        bad = np.isin(ids, list(self._bad))
        replaced = np.full(len(ids), -1)
        if self._on_error == "skip" and bad.any():
            replaced[bad] = ids[bad]
            ids = ids.copy()
            ids[bad] = [self._stand_in(number) for number in ids[bad].tolist()]
        masked = bad if self._on_error == "mask" else np.zeros(len(ids), bool)
        return SeenBatch(step, self._origins, ids, rows.epochs, replaced=replaced, masked=masked)

    def _position(self, step: int) -> Position:
        """The position of the input before this step."""
        start = self.segment.start
        position = Position(start.position["epoch"], start.position["records"])
        return self._order.advance(position, step - 1 - start.step)

    @functools.cache  # noqa: B019 (a trace lives as long as its command)
    def _stand_in(self, bad: int) -> int:
        numbers = stand_ins(self._provenance["source_starts"], bad)
        return next(number for number in numbers if number not in self._bad)


@dataclass(frozen=True)
class RecordPlace:
    """Where a record is. record: its number in the split; shard_record: in the shard; offset: the
    byte at which its frame begins. key, label: as text, "" if the record has none. None: not
    known."""

    directory: str | None = None
    split: str | None = None
    record: int | None = None
    shard: str | None = None
    shard_record: int | None = None
    offset: int | None = None
    key: str = ""
    label: str = ""


class RecordPlaces:
    """The places of an input's records by number. directory: where data are now that were moved.

    A source that cannot be opened is reported in the log once; its records have only the numbers
    that the history knows."""

    def __init__(self, origins: Sequence[Origin], directory: str | None = None) -> None:
        self.origins = origins
        self._directory = directory
        self._ends = np.cumsum([origin.stop - origin.first for origin in origins])
        self._opened: dict[tuple[str | None, ...], IndexedRecords | None] = {}

    def of(self, record_ids: np.ndarray) -> list[RecordPlace]:
        """The places of these records; reads the records for their keys and labels."""
        places = [RecordPlace()] * len(record_ids)
        owners = np.searchsorted(self._ends, record_ids, side="right")
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            origin = self.origins[owner]
            numbers = record_ids[rows] - self._ends[owner] + origin.stop  # in the origin's source
            for row, place in zip(rows.tolist(), self._within(origin, numbers), strict=True):
                places[row] = place
        return places

    def _within(self, origin: Origin, numbers: np.ndarray) -> Iterator[RecordPlace]:
        source = self._source(origin)
        if source is None:
            for number in numbers.tolist():
                yield RecordPlace(origin.directory, origin.split, number)
            return
        at = source.index.locate(numbers)
        records = fetch(source, numbers)
        columns = (numbers.tolist(), at.shard.tolist(), at.record.tolist(), at.offset.tolist())
        for number, shard, within, offset, record in zip(*columns, records, strict=True):
            yield RecordPlace(
                source.manifest.directory,
                source.split,
                number,
                source.entry.shards[shard].file,
                within,
                offset,
                *_key_and_label(source, record),
            )

    def _source(self, origin: Origin) -> IndexedRecords | None:
        which = (origin.directory, origin.split, origin.fingerprint)
        if which not in self._opened:
            try:
                self._opened[which] = reopened(origin, self._directory)
            except (InfeedError, ValueError) as e:  # ValueError: a path that no system call takes
                log.warning("cannot locate the records: %s", e)
                self._opened[which] = None
        return self._opened[which]


def _key_and_label(source: IndexedRecords, record: Any) -> tuple[str, str]:
    """The key and the label of a record, as text; of a damaged record, what is wrong."""
    if not isinstance(record, tuple):
        return f"(damaged: {record})", ""
    if source.manifest.schema.opaque:
        return "", ""
    try:
        values = decode_example(record[0])
    except InfeedError as e:
        return f"(damaged: {e})", ""
    key = key_of(source.manifest.name, source.split, values)
    if key is None:
        key = next((values[name][0] for name in NAMES if values.get(name)), b"")
    text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
    return printable(text), ", ".join(_labels(source, values))


def _labels(source: IndexedRecords, values: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """The labels of a record, with their names; without named classes, the single integers of
    features called label."""
    if labels := source.info.labels:
        for label in labels.of(values):
            yield f"{label} {labels.name_of(label) or ''}".strip()
        return
    for name, numbers in values.items():
        if name.rpartition("/")[2] == "label" and len(numbers) == 1 and isinstance(numbers[0], int):
            yield str(numbers[0])


@dataclass(frozen=True)
class SeenRecord:
    """A record that a step saw, in this row of the global batch.

    index: its number in the input, as `_index` had it. epoch: of the order. replaces: the bad
    record in whose place it was read. masked: whether it is a bad record that was left out."""

    step: int
    row: int
    index: int
    epoch: int
    place: RecordPlace
    replaces: int | None = None
    masked: bool = False

    @property
    def note(self) -> str:
        """What is special about it; "" if nothing is."""
        if self.masked:
            return "left out as bad"
        return "" if self.replaces is None else f"in place of bad record {self.replaces}"

    def to_json(self) -> dict[str, Any]:
        """The record as a flat dict."""
        flat = asdict(self)
        return flat | flat.pop("place")


@dataclass(frozen=True)
class SeenStep:
    """The first records of one step, in row order. num_rows: how many there are."""

    step: int
    num_rows: int
    records: list[SeenRecord]


def seen_steps(
    history: History,
    workdir: str,
    steps: range,
    *,
    data_dir: str | None = None,
    most: int | None = None,
) -> Iterator[SeenStep]:
    """The records of these steps. data_dir: where the data are now, if they were moved. most: how
    many records of each step to return; None: all. Their payloads are read for keys and labels.

    Raises what `seen_batches` raises."""
    places: RecordPlaces | None = None
    for batch in seen_batches(history, steps, workdir):
        if places is None or places.origins is not batch.origins:
            places = RecordPlaces(batch.origins, data_dir)
        yield step_of(batch, places, most)


def step_of(batch: SeenBatch, places: RecordPlaces, most: int | None) -> SeenStep:
    """The records of one batch. most: see `seen_steps`."""
    records = [
        SeenRecord(
            step=batch.step,
            row=row,
            index=int(batch.record_ids[row]),
            epoch=int(batch.epochs[row]),
            place=place,
            replaces=int(batch.replaced[row]) if batch.replaced[row] >= 0 else None,
            masked=bool(batch.masked[row]),
        )
        for row, place in enumerate(places.of(batch.record_ids[:most]))
    ]
    return SeenStep(batch.step, len(batch.record_ids), records)
