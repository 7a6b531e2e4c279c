"""The training order of what is given: of records, or of a mixture, with sizes that follow from the data and the batch.

train_dataset asks for it. Nothing here depends on the host or on where the data lies, or hosts would disagree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

from pipeline.orders.hashing import SOURCES, hash_key
from pipeline.orders.mixing import MixOrder, check_weights
from pipeline.orders.order import TrainOrder, default_streams
from pipeline.orders.shuffle import Shuffle, default_block_records, default_window_records
from pipeline.shards.errors import OptionError
from pipeline.sources.joined import Concatenated, Part
from pipeline.sources.opening import Data, open_dataset
from pipeline.sources.records import RECORD_OBJECT_BYTES, Records

__all__ = ["Mixture", "Plan", "mixture", "plan_mixture", "plan_records"]

WHOLE_FILES_WINDOW_BYTES = 512 * 1024**2  # over all hosts: what is read in passing has to be held
WHOLE_FILES_MARGIN = 1.25


@dataclass(frozen=True)
class Mixture:
    """Records to be drawn from several sources; shares: float64, of each source, together 1."""

    records: Concatenated
    shares: np.ndarray


def mixture(sources: Sequence[Data], weights: Sequence[float]) -> Mixture:
    """Several sources, of which training draws rows in proportion to these weights, each shuffled for itself.

    sources: what open_dataset returned, or takes (then their "train"). The weights need not add up to 1.

    Raises: as open_dataset; OptionError unless there is a weight above 0 for each source."""
    if len(sources) != len(weights):
        raise OptionError(f"{len(sources)} sources have {len(weights)} weights: give one for each.")
    return Mixture(Concatenated([Part(open_dataset(source)) for source in sources]), check_weights(weights))


@dataclass(frozen=True)
class Plan:
    """An order, and the bytes in its windows over all hosts."""

    order: TrainOrder | MixOrder
    window_bytes: int


def plan_records(
    records: Records,
    global_batch: int,
    *,
    seed: int,
    epochs: Literal["drop", "span"],
    streams: int | None,
    block_records: int | None,
    window_records: int | None,
) -> Plan:
    """The order of one source."""
    if streams is None:
        streams = default_streams(global_batch, _most_streams(records))
    block_records = _block_records(records) if block_records is None else block_records
    if window_records is None:
        window_records = _window_records(records, block_records, streams, global_batch)
    order = TrainOrder(
        records.num_records,
        global_batch,
        seed=seed,
        block_records=block_records,
        block_starts=records.block_starts(max(1, block_records)),
        streams=streams,
        window_records=window_records,
        epochs=epochs,
    )
    return Plan(order, _window_bytes(records, streams, window_records, block_records))


def plan_mixture(
    mixed: Mixture,
    global_batch: int,
    *,
    seed: int,
    streams: int | None,
    block_records: int | None,
    window_records: int | None,
) -> Plan:
    """The order of a mixture. A source's windows shrink with its share: so many of the rows come from it."""
    sources = [part.records for part in mixed.records.parts]
    if streams is None:
        streams = default_streams(global_batch, min(map(_most_streams, sources)))
    shuffles, settings, total = [], [], 0
    for number, (records, share) in enumerate(zip(sources, mixed.shares.tolist(), strict=True)):
        block = _block_records(records) if block_records is None else block_records
        window = window_records
        if window is None:
            window = max(1, math.ceil(share * _window_records(records, block, streams, global_batch)))
        starts, own_seed = records.block_starts(max(1, block)), int(hash_key(seed, SOURCES, number))
        shuffles.append(Shuffle(records.num_records, starts, seed=own_seed, streams=streams, window_records=window))
        settings.append((share, block, window))
        total += _window_bytes(records, streams, window, block)
    digest = blake2b(repr(settings).encode(), digest_size=8).hexdigest()
    first_ids = mixed.records.source_starts[:-1].tolist()
    order = MixOrder(shuffles, first_ids, mixed.shares, global_batch, seed=seed, digest=digest)
    return Plan(order, total)


def _most_streams(records: Records) -> int:
    return min(records.num_records, records.whole_files or records.num_records)


def _mean_bytes(records: Records) -> float:
    return records.num_bytes / records.num_records


def _block_records(records: Records) -> int:
    return default_block_records(_mean_bytes(records), records.num_records)


def _window_records(records: Records, block_records: int, streams: int, global_batch: int) -> int:
    window = default_window_records(block_records, streams, global_batch)
    if records.whole_files is None:
        return window
    return max(1, min(window, int(WHOLE_FILES_WINDOW_BYTES / _mean_bytes(records)) // streams))


def _window_bytes(records: Records, streams: int, window_records: int, block_records: int) -> int:
    """The windows, and the blocks that stand over their ends."""
    held = min(records.num_records, streams * (window_records + block_records))
    if records.whole_files is None:
        return int(held * (_mean_bytes(records) + RECORD_OBJECT_BYTES))
    # Where files are read whole, what is not in sight is passed in vain, so some more: records differ in size.
    return int(held * _mean_bytes(records) * WHOLE_FILES_MARGIN)
