"""Where a user starts: batches for training and for exact evaluation, from a converted directory.

Two recipes that read as the data flows. Both return an Input; the trainer takes it as it is."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from pipeline.decode import Decoder
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.input import Batches, Input
from pipeline.ops import Op
from pipeline.order import EvalOrder, Position, TrainOrder
from pipeline.reader import SplitReader, open_split
from pipeline.shards.errors import OptionError
from pipeline.shards.sizes import format_bytes
from pipeline.shuffle import default_block_records
from pipeline.spec import ArraySpec

__all__ = ["ArraySpec", "Batches", "Input", "Position", "eval_dataset", "train_dataset"]

log = logging.getLogger("pipeline")

READ_AHEAD_BYTES = 64 * 1024**2
MAX_WINDOW_BYTES = 2 * 1024**3
STALL_SECONDS = 600.0


def train_dataset(
    data_dir: str,
    split: str = "train",
    *,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
    seed: int = 0,
    epochs: Literal["drop", "span"] = "drop",
    streams: int | None = None,
    block_records: int | None = None,
    window_records: int | None = None,
    read_ahead_bytes: int | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Input:
    """Endless shuffled batches; the global batch is the same for any number of hosts.

    keys: features of a batch, after ops; None takes every one of fixed shape that is not bytes. int64 features come
    as int32, JAX's integer; a value that does not fit is a SchemaError. epochs="drop": N // global_batch steps, the
    dropped tail differs every epoch; "span": batches cross epochs, also how a split smaller than a batch trains.
    streams, block_records, window_records: see TrainOrder; the defaults depend on the data and the batch alone.
    read_ahead_bytes: what the reading thread may hold. None: 64 MiB; in a bucket as much as this host's share of the
    shuffle windows, if that is more, up to 2 GiB: so a block is read in one request. stall_seconds: how long one
    batch may be waited for; longer is a StallError, with the stacks of all threads in the log.

    Raises: ManifestError, OptionError, EmptySplitError, ShardError, SchemaError, BatchSizeError, before any record
    is read."""
    rows = hosts.host_rows(global_batch)
    reader = open_split(data_dir, split)
    order = TrainOrder(
        reader.num_records,
        global_batch,
        seed=seed,
        streams=streams,
        block_records=default_block_records(reader.num_bytes / reader.num_records, reader.num_records)
        if block_records is None
        else block_records,
        window_records=window_records,
        epochs=epochs,
    )
    decoder = Decoder(reader.layout, sum(map(len, rows)), ops=ops, keys=keys)
    if read_ahead_bytes is None:
        read_ahead_bytes = READ_AHEAD_BYTES
        if reader.remote:
            read_ahead_bytes = max(READ_AHEAD_BYTES, _window_bytes(reader, order, sum(map(len, rows)) / global_batch))
    return Input(
        reader, order, decoder, rows, expected_crc=None, read_ahead_bytes=read_ahead_bytes, stall_seconds=stall_seconds
    )


def _window_bytes(reader: SplitReader, order: TrainOrder, share: float) -> int:
    """What it takes to read whole blocks: the windows of this host, and the blocks that stand over their ends."""
    records = min(order.num_records, order.streams * (order.window_records + order.block_records))
    wanted = int(records * share * reader.num_bytes / reader.num_records)
    if wanted > MAX_WINDOW_BYTES:
        log.info(
            "Reading ahead %s of the %s in the shuffle windows: smaller reads, more requests. Give read_ahead_bytes to "
            "take all, or a smaller window_records.",
            format_bytes(MAX_WINDOW_BYTES),
            format_bytes(wanted),
        )
    return min(wanted, MAX_WINDOW_BYTES)


def eval_dataset(
    data_dir: str,
    split: str = "validation",
    *,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    ops: Sequence[Op] = (),
    keys: Iterable[str] | None = None,
    limit: int | None = None,
    pad_values: Mapping[str, float] | None = None,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
    stall_seconds: float = STALL_SECONDS,
) -> Input:
    """Every record exactly once, in data order, in ceil(N / global_batch) batches on every host.

    The last batch is filled with rows whose `_mask` is 0.0; they hold pad_values (default 0), are read from nowhere
    and pass through no op. limit: the first so many records only. keys, read_ahead_bytes and stall_seconds are as in
    train_dataset.

    Raises: as train_dataset; a batch larger than the split is no error."""
    rows = hosts.host_rows(global_batch)
    reader = open_split(data_dir, split)
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit} must be at least 1; None takes all {reader.num_records} records.")
    order = EvalOrder(min(limit or reader.num_records, reader.num_records), global_batch)
    decoder = Decoder(reader.layout, sum(map(len, rows)), ops=ops, keys=keys, pad_values=pad_values)
    expected_crc = int(reader.crcs[: order.num_records].sum(dtype=np.uint64)) % 2**32
    return Input(
        reader,
        order,
        decoder,
        rows,
        expected_crc=expected_crc,
        read_ahead_bytes=read_ahead_bytes,
        stall_seconds=stall_seconds,
    )
