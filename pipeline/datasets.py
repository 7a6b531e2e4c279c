"""Where a user starts: batches for training and for exact evaluation, from any source of records.

Two recipes that read as the data flows. Both return an Input; the trainer takes it as it is."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np

from pipeline.budgets import READ_AHEAD_BYTES, check_hosts, training_bytes
from pipeline.caches.cache import Cache, CachedRecords, cached
from pipeline.decoding.decode import Decoder
from pipeline.decoding.op import Op
from pipeline.decoding.padding import PadTo
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.bad_records import MAX_BAD_RECORDS, BadRecord, OnError, Quarantine
from pipeline.inputs.decoded import DecodedInput
from pipeline.inputs.input import Batches, Input, Order
from pipeline.logs import logger
from pipeline.orders.order import EvalOrder, Position
from pipeline.plans import Mixture, mixture, plan_mixture, plan_records
from pipeline.shards.errors import OptionError
from pipeline.shards.sizes import format_bytes
from pipeline.sources.joined import Part, concatenated
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

log = logger("pipeline")

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

    data: what to read, as open_dataset takes or returns it, or a `mixture`.
    split: which part of it, see open_dataset. None: "train", or all that was opened.
    global_batch: rows of a batch, over all hosts.
    hosts: which host this is, of how many. Default: the only one.
    ops: what is done to each record, in this order, see pipeline.ops.
    keys: features of a batch, after ops. None: all of fixed shape that are not bytes. Numbers of 64 bits come as 32,
        all that JAX computes in; one that does not fit is a SchemaError.
    pad_to: key -> length of its rows, for features of any length; a longer one is a SchemaError. A PadTo says more.
    nested: batches and spec are nested dicts, cut at the slashes of keys.
    limit: only the first so many records.
    seed: of the order and of ops; another one gives another order.
    epochs: "drop" has N // global_batch steps, and drops another tail every epoch. "span": batches cross epochs; so
        does a split smaller than a batch. A mixture has no epochs, each source begins again when it has been read.
    streams: from how many places of the data a batch is taken, see TrainOrder. It divides the batch. None: by data and
        batch alone, as the next two.
    block_records: how many neighbours are read together: more are cheaper, and shuffled less well.
    window_records: in what stretch of a stream records are shuffled: more are shuffled better, and take memory where
        the windows are held.
    cache: "ram", or a directory on a local disk, keeps the records as they are stored, see `cached`.
    read_ahead_bytes: what the reading thread may hold. None: 256 MB; from a bucket, or from files that are read whole,
        this host's share of the shuffle windows, if that is more, up to 3 GiB: so a block is one request.
    stall_seconds: how long one batch may be waited for. Then it is a StallError, with all stacks in the log.
    on_error: what a record does that is damaged, or cannot be parsed or decoded. "raise": ends all, with an error that
        names it. "skip": the next good record of its source takes its row, the same one on any hosts and after any
        resume. "mask": its row has `_mask` 0.0. Those left out are in the log and in Input.quarantine.
    max_bad_records: how many a host may leave out; one more is a BadRecordsError.
    quarantine_file: a path or gs:// that names those left out, too; hosts and runs add to one file.

    Raises: as open_dataset, BatchSizeError, and OptionError or SchemaError for options that the data do not allow,
    before any record is read; the batches, see Input.batches."""
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
    check_hosts(records, hosts, plan.order.streams)
    if cache == "decoded":
        raise OptionError("cache='decoded' is for eval_dataset: batches of training never come again. Known: 'ram'.")
    if cache is not None:  # every host comes to need every record, in one epoch or another
        records = cached(records, cache)
    decoder = Decoder(
        records.layout, sum(map(len, rows)), ops=ops, keys=keys, pad_to=pad_to, nested=nested, seeded=True
    )
    if read_ahead_bytes is None:
        share = sum(map(len, rows)) / global_batch
        read_ahead_bytes = training_bytes(records, int(plan.window_bytes * share))
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
    read_ahead_bytes: int | None = None,
    stall_seconds: float = STALL_SECONDS,
    on_error: OnError = "raise",
    max_bad_records: int = MAX_BAD_RECORDS,
    quarantine_file: str | PathLike[str] | None = None,
) -> Input:
    """Every record exactly once, in data order, in ceil(N / global_batch) batches on every host.

    The last batch is filled with rows of padding: `_mask` 0.0, read from nowhere, passed through no op.

    data: what to read, as open_dataset takes or returns it; no `mixture`, which has no end.
    split: which part of it, see open_dataset. None: "validation", or all that was opened.
    global_batch: rows of a batch, over all hosts; there may be fewer records.
    hosts, ops, keys, pad_to, nested: as in train_dataset.
    limit: only the first so many records, for any number of hosts.
    pad_values: key -> what rows of padding hold. Others hold what pad_to fills with, or 0.
    cache: as in train_dataset; or "decoded": the batches of the first complete pass are kept in RAM, as arrays that
        cannot be written, and given again. An Input keeps its own RAM: make it once, and let input_fn return it for
        every evaluation.
    read_ahead_bytes: what the reading thread may hold. None: 256 MB.
    stall_seconds, max_bad_records, quarantine_file: as in train_dataset.
    on_error: "raise", or "mask": bad records are left out of the metrics, and the evaluation says how many. "skip"
        would count others twice, so it is refused.

    Raises: as train_dataset."""
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
        read_ahead_bytes=READ_AHEAD_BYTES if read_ahead_bytes is None else read_ahead_bytes,
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
    if options["read_ahead_bytes"] < 0:
        raise OptionError(f"read_ahead_bytes={options['read_ahead_bytes']} must be 0 or more; with 0 it is a batch.")
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
    return concatenated([Part(records, range(min(limit, records.num_records)))])
