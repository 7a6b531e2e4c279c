"""Where users start: batches for training and for exact evaluation, from any source of records.

train_dataset and eval_dataset read in the order in which data flows. Both return a DatasetInput;
without global_batch, a dataset to which a Trainer gives its batch size, on each of its hosts."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Literal

from pipeline.checks import check_number
from pipeline.decoding.decode import Decoder
from pipeline.decoding.op import Op
from pipeline.decoding.padding import PadTo
from pipeline.errors import OptionError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.caches import Cache, CachedRecords, cached
from pipeline.inputs.dataset_input import Batches, DatasetInput, Workers
from pipeline.inputs.quarantine import MAX_BAD_RECORDS, BadRecord, OnError, Quarantine
from pipeline.inputs.unbatched import Unbatched, without_batch
from pipeline.orders.defaults import (
    Mixture,
    Sizes,
    check_hosts,
    plan_mixture,
    plan_records,
    training_bytes,
)
from pipeline.orders.mixing import MixOrder, check_weights
from pipeline.orders.order import EvalOrder, Position, TrainOrder
from pipeline.sources.concatenated import Concatenated, Part, concatenated
from pipeline.sources.open_dataset import Data, open_dataset
from pipeline.sources.records import READ_AHEAD_BYTES, Records
from pipeline.spec import ArraySpec

__all__ = [
    "ArraySpec",
    "BadRecord",
    "Batches",
    "CachedRecords",
    "DatasetInput",
    "Mixture",
    "PadTo",
    "Position",
    "Unbatched",
    "cached",
    "eval_dataset",
    "mixture",
    "open_dataset",
    "train_dataset",
]

STALL_SECONDS = 600.0


@without_batch
def train_dataset(
    data: Data | Sequence[Data] | Mixture,
    split: str | None = None,
    *,
    global_batch: int = 0,
    hosts: Hosts = ONE_HOST,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
    pad_to: Mapping[str, int | PadTo] | None = None,
    offsets: Mapping[str, int] | None = None,
    nested: bool = False,
    limit: int | None = None,
    seed: int = 0,
    epochs: Literal["drop", "span"] = "drop",
    streams: int | None = None,
    block_records: int | None = None,
    window_records: int | None = None,
    cache: Cache | None = None,
    read_ahead_bytes: int | None = None,
    stall_seconds: float = STALL_SECONDS,
    workers: Workers = "auto",
    on_error: OnError = "raise",
    max_bad_records: int = MAX_BAD_RECORDS,
    quarantine_file: str | PathLike[str] | None = None,
    start_step: int = 0,
) -> DatasetInput:
    """Endless shuffled batches; the global batch is the same for any number of hosts.

    data: what to read, as open_dataset accepts or returns it, or a `mixture`.
    split: which part to read, see open_dataset. None: "train", or everything that was opened.
    global_batch: rows of a batch, over all hosts. Default: a Trainer decides it, and the hosts; see
        Unbatched.
    hosts: which host this is, and how many there are. Default: the only one.
    ops: applied to each record, in this order, see pipeline.ops.
    keys: features of a batch, after the ops. None: all of fixed shape that are not bytes. 64-bit
        numbers become 32-bit, as in JAX; one that does not fit is a SchemaError.
    pad_to: key -> row length, for features of variable length; a longer row is a SchemaError. PadTo
        has more options.
    offsets: key -> what to subtract from its integers, in 64 bits, before they become float32.
        That has 24 bits: of large numbers, such as times, the offset takes what they have in
        common. Floats, and features that are not in a batch, stay as they are. Default: those of
        the Trainer's task.
    nested: batches and spec are nested dicts, with keys split at slashes.
    limit: only the first `limit` records.
    seed: of the order and the ops.
    epochs: "drop" has N // global_batch steps per epoch and drops a different tail each time, so no
        record comes twice in an epoch. "span": batches cross epochs, and the split may be smaller
        than a batch; with one stream, every record comes once before any comes again. Each source
        of a mixture always starts over when exhausted.
    streams: number of positions each batch is drawn from, see TrainOrder; divides the batch. In
        "span" and in mixtures they begin their epochs separately, and drift apart by one record per
        stream and epoch. None, here and for the next two: chosen from the data and the batch alone;
        1 for at most 16,384 indexed records of one source.
    block_records: how many neighbours are read together. Larger blocks are cheaper to read but
        shuffle less well.
    window_records: how many records of a stream are shuffled together. Larger windows shuffle
        better, but take memory where they are held.
    cache: "ram", or a directory on a local disk, keeps the records as they are stored, see
        `cached`.
    read_ahead_bytes: the most that the reading thread may hold. None: 256 MB; for a bucket,
        front-read files and records below 4 kB, this host's share of the shuffle windows if that is
        more, up to 3 GiB, so that each block is one request.
    stall_seconds: how long to wait for one batch before a StallError, which logs all stacks.
    workers: processes that make the batches, each its rows of every batch. Bits do not depend on
        it. 0: threads of this process, which the GIL bounds. "auto": decided by the cores and what
        the first batches took; 0 for small data. The source and the ops are pickled: ops must be in
        a module that another process can import, otherwise "auto" is 0.
    on_error: what to do with a record that is damaged, or cannot be parsed or decoded. "raise":
        raise an error that names it. "skip": use the next good record of its source instead, the
        same one for any number of hosts and after any resume. "mask": set `_mask` to 0.0 in its
        row. The log and DatasetInput.quarantine list these records.
    max_bad_records: how many a host may leave out before a BadRecordsError.
    quarantine_file: a path that also lists them; hosts and runs add to one file.
    start_step: number of batches before the first one that is delivered. The trainer resumes by
        itself.

    Raises: as open_dataset; BatchSizeError; and OptionError or SchemaError for options that do not
    suit the data, before any record is read. The batches raise as DatasetInput.batches."""
    rows = hosts.host_rows(global_batch)
    host_batch = sum(map(len, rows))
    if isinstance(data, Mixture):
        if split is not None or limit is not None:
            raise OptionError(
                "split and limit apply to one source; open the sources of a mixture with them."
            )
        records = data.records
        plan = partial(plan_mixture, data, global_batch, seed=seed)
    else:
        records = _limited(open_dataset(data, split, index_dir=_directory(cache)), limit)
        plan = partial(plan_records, records, global_batch, seed=seed, epochs=epochs)
    info = records.info
    sizes = Sizes(streams, block_records, window_records)

    def ordered(saved: Mapping[str, Any]) -> tuple[TrainOrder | MixOrder, int]:
        order, window_bytes = plan(sizes.or_saved(saved))
        if read_ahead_bytes is not None:
            return order, read_ahead_bytes
        ours = window_bytes * host_batch // global_batch
        return order, training_bytes(info, ours, mixed=isinstance(data, Mixture))

    order, ahead_bytes = ordered({})
    check_hosts(info, hosts)
    if cache is not None:  # sooner or later, every host needs every record
        records = cached(records, cache)
    return DatasetInput(
        records,
        order,
        Decoder(
            records.info.layout,
            host_batch,
            ops=ops,
            keys=keys,
            pad_to=pad_to,
            offsets=offsets,
            nested=nested,
            seeded=True,
        ),
        rows,
        read_ahead_bytes=ahead_bytes,
        ordered=ordered,
        stall_seconds=stall_seconds,
        quarantine=Quarantine(on_error, max_bad_records, quarantine_file),
        start_step=checked_start_step(start_step),
        workers=workers,
    )


@without_batch
def eval_dataset(
    data: Data | Sequence[Data],
    split: str | None = None,
    *,
    global_batch: int = 0,
    hosts: Hosts = ONE_HOST,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
    pad_to: Mapping[str, int | PadTo] | None = None,
    offsets: Mapping[str, int] | None = None,
    nested: bool = False,
    limit: int | None = None,
    pad_values: Mapping[str, float] | None = None,
    cache: Cache | None = None,
    read_ahead_bytes: int | None = None,
    stall_seconds: float = STALL_SECONDS,
    workers: Workers = "auto",
    on_error: OnError = "raise",
    max_bad_records: int = MAX_BAD_RECORDS,
    quarantine_file: str | PathLike[str] | None = None,
) -> DatasetInput:
    """Every record exactly once, in data order, in ceil(N / global_batch) batches on every host.

    The last batch is filled with rows of padding: `_mask` is 0.0, nothing is read for them, and no
    op sees them.

    data: what to read, as open_dataset accepts or returns it; no `mixture`, because it is endless.
    split: which part to read, see open_dataset. None: "validation", or everything that was opened.
    global_batch: rows of a batch, over all hosts; there may be fewer records. Default: as in
        train_dataset.
    hosts, ops, keys, pad_to, offsets, nested, limit, cache, stall_seconds, workers,
        max_bad_records, quarantine_file: as in train_dataset.
    pad_values: key -> value in rows of padding. Default: what pad_to fills with, or 0.
    read_ahead_bytes: the most that the reading thread may hold. None: 256 MB.
    on_error: "raise", or "mask": leaves bad records out of the metrics, and the evaluation reports
        how many. "skip" is refused, because it would count other records twice.

    Raises: as train_dataset."""
    if isinstance(data, Mixture):
        raise OptionError(
            "a mixture is endless, so no epoch is exact. Evaluate each source, or a list of them "
            "as one."
        )
    if on_error == "skip":
        raise OptionError(
            "on_error='skip' would count another record twice in place of a bad one, so the epoch "
            "would not be exact. 'mask' leaves bad records out and reports how many there are."
        )
    rows = hosts.host_rows(global_batch)
    index_dir = _directory(cache)
    opened = open_dataset(data, split, default_split="validation", index_dir=index_dir)
    records = _limited(opened, limit)
    order = EvalOrder(records.info.num_records, global_batch)
    host_batch = sum(map(len, rows))
    if cache is not None:
        records = cached(records, cache, share=host_batch / global_batch)
    return DatasetInput(
        records,
        order,
        Decoder(
            records.info.layout,
            host_batch,
            ops=ops,
            keys=keys,
            pad_to=pad_to,
            offsets=offsets,
            nested=nested,
            pad_values=pad_values,
        ),
        rows,
        read_ahead_bytes=READ_AHEAD_BYTES if read_ahead_bytes is None else read_ahead_bytes,
        stall_seconds=stall_seconds,
        quarantine=Quarantine(on_error, max_bad_records, quarantine_file),
        workers=workers,
    )


def mixture(sources: Sequence[Data], weights: Sequence[float]) -> Mixture:
    """Sources from which training draws rows in proportion to `weights`; each is shuffled
    separately.

    sources: what open_dataset returns or accepts (then their "train" split). The weights need not
    sum to 1.

    Raises: as open_dataset; OptionError unless each source has a weight above 0."""
    if len(sources) != len(weights):
        raise OptionError(f"{len(sources)} sources have {len(weights)} weights: give one for each.")
    return Mixture(
        Concatenated([Part(open_dataset(source)) for source in sources]), check_weights(weights)
    )


def checked_start_step(start_step: int) -> int:
    """start_step as an int. OptionError if it is below 0."""
    check_number("start_step", start_step, at_least=0)
    return int(start_step)


def _directory(cache: Cache | None) -> Cache | None:
    return None if cache == "ram" else cache


def _limited(records: Records, limit: int | None) -> Records:
    if limit is None:
        return records
    check_number(
        "limit", limit, at_least=1, more=f"; None takes all {records.info.num_records} records"
    )
    return concatenated([Part(records, range(min(limit, records.info.num_records)))])
