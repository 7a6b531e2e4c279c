"""Where a user starts: batches for training and for exact evaluation, from any source of records.

Two recipes that read as the data flows. Both return an Input; the trainer takes it as it is."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np

from pipeline.caches.cache import Cache, CachedRecords, cached
from pipeline.decoding.decode import Decoder
from pipeline.decoding.op import Op
from pipeline.decoding.padding import PadTo
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.bad_records import MAX_BAD_RECORDS, BadRecord, OnError, Quarantine
from pipeline.inputs.decoded import DecodedInput
from pipeline.inputs.input import Batches, Input, Order
from pipeline.orders.order import EvalOrder, Position
from pipeline.plans import Mixture, mixture, plan_mixture, plan_records
from pipeline.shards.errors import OptionError
from pipeline.shards.sizes import format_bytes
from pipeline.sources.joined import Part, joined
from pipeline.sources.opening import Data, open_dataset
from pipeline.sources.records import Records
from pipeline.spec import ArraySpec

__all__ = [
    "ArraySpec",
    "BadRecord",
    "Batches",
    "CachedRecords",
    "Input",
    "Mixture",
    "PadTo",
    "Position",
    "cached",
    "eval_dataset",
    "mixture",
    "open_dataset",
    "train_dataset",
]

log = logging.getLogger("pipeline")

READ_AHEAD_BYTES = 256_000_000
MAX_WINDOW_BYTES = 3 * 1024**3
STALL_SECONDS = 600.0


def train_dataset(
    data: Data | Sequence[Data] | Mixture,
    split: str | None = None,
    *,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
    pad_to: Mapping[str, int | PadTo] | None = None,
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
    on_error: OnError = "raise",
    max_bad_records: int = MAX_BAD_RECORDS,
    quarantine_file: str | PathLike[str] | None = None,
) -> Input:
    """Endless shuffled batches; the global batch is the same for any number of hosts.

    data, split: see open_dataset (None: "train"); or a `mixture`. keys: features of a batch, after ops; None takes
    every one of fixed shape that is not bytes. Numbers of 64 bits come as 32, all that JAX computes in; one that does
    not fit is a SchemaError. pad_to: how long the rows of a feature of any length become; a longer one is a
    SchemaError, and a PadTo says more. nested: batches and spec are nested dicts, cut at the slashes of keys. limit: of
    the first so many records only. epochs="drop": N // global_batch steps, the dropped tail differs every epoch;
    "span": batches cross epochs, also how a split smaller than a batch trains, and always how a mixture does, each
    source at its own pace. streams, block_records, window_records: see TrainOrder; the defaults depend on the data and
    the batch alone. cache: "ram" or a directory on a local disk keeps the records as they are stored, see `cached`; the
    batches are the same. read_ahead_bytes: what the reading thread may hold. None: 256 MB; where records come from a
    bucket, or from files that are read whole, as much as this host's share of the shuffle windows, if that is more, up
    to 3 GiB: so a block is read in one request. stall_seconds: how long one batch may be waited for; longer is a
    StallError, with the stacks of all threads in the log.

    on_error: what a record that is damaged, or cannot be parsed or decoded, does. "raise": ends all with an error that
    names it. "skip": the next good record of the same source takes its row, on any number of hosts and after any resume
    the same one. "mask": its row has `_mask` 0.0. Each is in the log and in Input.quarantine, and in quarantine_file (a
    path or gs://; hosts and runs add to one file). max_bad_records: how many a host may leave out; one more is a
    BadRecordsError.

    Raises: as open_dataset, and BatchSizeError, before any record is read."""
    rows = hosts.host_rows(global_batch)
    sizes = {"streams": streams, "block_records": block_records, "window_records": window_records}
    if isinstance(data, Mixture):
        if split is not None or limit is not None:
            raise OptionError(
                "split and limit are of one source; open those of a mixture with the parts that you mean."
            )
        records, plan = data.records, plan_mixture(data, global_batch, seed=seed, **sizes)
    else:
        records = _limited(open_dataset(data, split), limit)
        plan = plan_records(records, global_batch, seed=seed, epochs=epochs, **sizes)
    _check_files(records, hosts)
    if cache == "decoded":
        raise OptionError("cache='decoded' is for eval_dataset: batches of training never come again. Known: 'ram'.")
    if cache is not None:  # every host comes to need every record, in one epoch or another
        records = cached(records, cache)
    decoder = Decoder(records.layout, sum(map(len, rows)), ops=ops, keys=keys, pad_to=pad_to, nested=nested)
    if read_ahead_bytes is None:
        share = sum(map(len, rows)) / global_batch
        read_ahead_bytes = _read_ahead_bytes(records, int(plan.window_bytes * share))
    return _input(
        records,
        plan.order,
        decoder,
        rows,
        expected_crc=None,
        read_ahead_bytes=read_ahead_bytes,
        stall_seconds=stall_seconds,
        quarantine=Quarantine(on_error, max_bad_records, quarantine_file),
    )


def eval_dataset(
    data: Data | Sequence[Data],
    split: str | None = None,
    *,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
    pad_to: Mapping[str, int | PadTo] | None = None,
    nested: bool = False,
    limit: int | None = None,
    pad_values: Mapping[str, float] | None = None,
    cache: Cache | None = None,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
    stall_seconds: float = STALL_SECONDS,
    on_error: OnError = "raise",
    max_bad_records: int = MAX_BAD_RECORDS,
    quarantine_file: str | PathLike[str] | None = None,
) -> Input:
    """Every record exactly once, in data order, in ceil(N / global_batch) batches on every host.

    The last batch is filled with rows whose `_mask` is 0.0; they hold pad_values (default: what pad_to fills with,
    else 0), are read from nowhere and pass through no op. data, split: see open_dataset (None: "validation"). limit:
    the first so many records only. keys, pad_to, nested, read_ahead_bytes, stall_seconds, max_bad_records and
    quarantine_file are as in train_dataset. on_error="mask" leaves bad records out of the metrics, and the evaluation
    says how many. cache: as in train_dataset, or "decoded": the batches of the first complete pass are kept in RAM, as
    arrays that cannot be written, and given again. What is in RAM is kept by the Input: make it once, and let input_fn
    return it for every evaluation.

    Raises: as train_dataset; a batch larger than the split is no error."""
    if isinstance(data, Mixture):
        raise OptionError("a mixture has no end, so no exact epoch. Evaluate each source, or a list of them as one.")
    if on_error == "skip":
        raise OptionError(
            "on_error='skip' counts another record twice in place of a bad one, so the epoch is not exact. 'mask' "
            "leaves bad records out and says how many they are."
        )
    rows = hosts.host_rows(global_batch)
    records = _limited(open_dataset(data, split, default_split="validation"), limit)
    order = EvalOrder(records.num_records, global_batch)
    decoder = Decoder(
        records.layout, sum(map(len, rows)), ops=ops, keys=keys, pad_to=pad_to, nested=nested, pad_values=pad_values
    )
    crcs = records.crcs
    if cache is not None and cache != "decoded":
        records = cached(records, cache, share=sum(map(len, rows)) / global_batch)
    return _input(
        records,
        order,
        decoder,
        rows,
        expected_crc=None if crcs is None else int(crcs.sum(dtype=np.uint64)) % 2**32,
        read_ahead_bytes=read_ahead_bytes,
        stall_seconds=stall_seconds,
        quarantine=Quarantine(on_error, max_bad_records, quarantine_file),
        kind=DecodedInput if cache == "decoded" else Input,
    )


def _input(
    records: Records,
    order: Order,
    decoder: Decoder,
    rows: tuple[range, ...],
    *,
    kind: type[Input] = Input,
    **options: Any,
) -> Input:
    made = kind(records, order, decoder, rows, **options)
    log.info(
        "%s: %d records, up to %s read ahead", records.name, order.num_records, format_bytes(made.read_ahead_bytes)
    )
    return made


def _limited(records: Records, limit: int | None) -> Records:
    if limit is None:
        return records
    if limit < 1:
        raise OptionError(f"limit={limit} must be at least 1; None takes all {records.num_records} records.")
    return joined([Part(records, range(min(limit, records.num_records)))])


def _check_files(records: Records, hosts: Hosts) -> None:
    if records.whole_files is not None and hosts.count > records.whole_files:
        raise OptionError(
            f"{records.name}: {hosts.count} hosts cannot share {records.whole_files} files that have no index, because "
            "each must have files of its own. Index them, and any number of hosts can: python -m pipeline.index "
            "'DIR/PATTERN' (compressed ones have to be written anew: python -m converters.tfrecord_to_gcs)."
        )


def _read_ahead_bytes(records: Records, window_bytes: int) -> int:
    """For training: what of the windows has to be held for large reads, or else the ordinary budget."""
    if not records.remote and records.whole_files is None:
        return READ_AHEAD_BYTES
    if window_bytes > MAX_WINDOW_BYTES:
        log.info(
            "Reading ahead %s of the %s in the shuffle windows: smaller reads, more requests. Give read_ahead_bytes to "
            "take all, or a smaller window_records.",
            format_bytes(MAX_WINDOW_BYTES),
            format_bytes(window_bytes),
        )
    return max(READ_AHEAD_BYTES, min(window_bytes, MAX_WINDOW_BYTES))
