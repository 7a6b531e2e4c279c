"""The training order of one source or of a mixture; default sizes follow from the data and the
batch.

Used by train_dataset. An order depends neither on the host nor on where the data is stored, or
hosts would disagree. Only the memory to read ahead may differ between hosts, because it changes no
batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np

from pipeline.errors import OptionError
from pipeline.hosts import Hosts
from pipeline.orders.mixing import MixOrder
from pipeline.orders.order import TrainOrder, divisors
from pipeline.orders.shuffle import (
    LEAST_BLOCKS,
    SOURCES,
    WINDOW_BLOCKS,
    Shuffle,
    default_block_records,
    default_window_records,
    hash_key,
)
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.records import READ_AHEAD_BYTES, RECORD_OBJECT_BYTES, Records, RecordsInfo

MAX_STREAMS = 64
PAGE_BYTES = 4096  # a disk reads no less, so smaller records are cheap only with their neighbours
# Of files that can only be read from the front, which pass records before they are due.
WHOLE_FILES_WINDOW_BYTES = 512 * 1024**2  # over all hosts
# records differ in size, and one outside the read-ahead would be passed and read again
WHOLE_FILES_MARGIN = 1.25


@dataclass(frozen=True)
class Mixture:
    """Several sources to draw records from. shares: float64 [sources], with sum 1."""

    records: Concatenated
    shares: np.ndarray


class Sizes(NamedTuple):
    """The arguments of train_dataset with these names; None follows from the data and the batch."""

    streams: int | None
    block_records: int | None
    window_records: int | None

    def or_saved(self, state: Mapping[str, Any]) -> "Sizes":
        """These, with the blocks and windows of a saved position where none are given. What cannot
        be a size stays None, so that the orders differ."""
        sizes = self._asdict()
        for name in ("block_records", "window_records"):
            saved = state.get(name)
            if sizes[name] is None and type(saved) is int and saved > 0:
                sizes[name] = saved
        return Sizes(**sizes)


def plan_records(
    records: Records, global_batch: int, sizes: Sizes, *, seed: int, epochs: Literal["drop", "span"]
) -> tuple[TrainOrder, int]:
    """The order of one source, and the bytes of all its windows over all hosts."""
    streams = (
        default_streams([records.info], global_batch) if sizes.streams is None else sizes.streams
    )
    block, window, window_bytes = _windows(records.info, global_batch, streams, sizes)
    order = TrainOrder(
        records.info.num_records,
        global_batch,
        seed=seed,
        block_records=block,
        block_starts=records.block_starts(max(1, block)),
        streams=streams,
        window_records=window,
        epochs=epochs,
    )
    return order, window_bytes


def plan_mixture(
    mixed: Mixture, global_batch: int, sizes: Sizes, *, seed: int
) -> tuple[MixOrder, int]:
    """The same of a mixture. A source's windows are scaled by its share of the rows."""
    sources = [part.records for part in mixed.records.parts]
    streams = sizes.streams
    if streams is None:
        streams = default_streams([records.info for records in sources], global_batch)
    shuffles = []
    settings = []
    total = 0
    for number, (records, share) in enumerate(zip(sources, mixed.shares.tolist(), strict=True)):
        block, window, window_bytes = _windows(records.info, global_batch, streams, sizes, share)
        shuffles.append(
            Shuffle(
                records.info.num_records,
                records.block_starts(max(1, block)),
                seed=int(hash_key(seed, SOURCES, number)),
                streams=streams,
                window_records=window,
            )
        )
        settings.append((share, block, window))
        total += window_bytes
    digest = blake2b(repr(settings).encode(), digest_size=8).hexdigest()
    first_ids = mixed.records.info.source_starts[:-1].tolist()
    return MixOrder(
        shuffles, first_ids, mixed.shares, global_batch, seed=seed, digest=digest
    ), total


def default_streams(sources: Sequence[RecordsInfo], global_batch: int) -> int:
    """One for small data, whose blocks are single records: hosts can share it without reading
    anything twice.

    Else the largest divisor of the batch that exceeds neither 64 nor the records, or front-read
    files, of any source. These files are cheap to read only in several streams, and the sources of
    a mixture share theirs."""
    if [(source.whole_files, source.num_records <= LEAST_BLOCKS) for source in sources] == [
        (None, True)
    ]:
        return 1
    most = min(MAX_STREAMS, *(source.whole_files or source.num_records for source in sources))
    return max(divisor for divisor in divisors(global_batch) if divisor <= most)


def _windows(
    source: RecordsInfo, global_batch: int, streams: int, sizes: Sizes, share: float | None = None
) -> tuple[int, int, int]:
    """(block_records, window_records, bytes in all windows) of a source. share: of the rows of a
    mixture."""
    mean_bytes = source.num_bytes / source.num_records
    _, block, window = sizes
    if block is None:
        block = default_block_records(mean_bytes, source.num_records)
        # Windows of small records must fit in what is read ahead: else each block is read 25 times.
        # A mixture's saved position does not state its block sizes, so they must not change.
        if _small(source) and share is None:
            row_bytes = mean_bytes + RECORD_OBJECT_BYTES
            block = min(block, math.ceil(READ_AHEAD_BYTES / WINDOW_BLOCKS / row_bytes))
    if window is None:
        window = default_window_records(block, max(1, streams), global_batch)
        if source.whole_files is not None:
            window = min(window, int(WHOLE_FILES_WINDOW_BYTES / mean_bytes) // max(1, streams))
        window = max(1, math.ceil(window if share is None else share * window))
    # windows, and blocks that extend past their ends
    held = min(source.num_records, streams * (window + block))
    if source.whole_files is None:
        return block, window, int(held * (mean_bytes + RECORD_OBJECT_BYTES))
    return block, window, int(held * mean_bytes * WHOLE_FILES_MARGIN)


MAX_WINDOW_BYTES = 3 * 1024**3


def check_hosts(records: RecordsInfo, hosts: Hosts) -> None:
    """Raises OptionError if there are more hosts than front-read files."""
    if records.whole_files is not None and hosts.count > records.whole_files:
        raise OptionError(
            f"{records.name}: {hosts.count} hosts cannot share {records.whole_files} files that "
            "have no index, because each host needs files of its own. An index lifts this limit: "
            "infeed index 'DIR/PATTERN' (compressed files must be rewritten first: python -m "
            "converters.tfrecord_to_gcs)."
        )


def training_bytes(records: RecordsInfo, window_bytes: int, *, mixed: bool = False) -> int:
    """Bytes to read ahead: enough of this host's windows for large reads, if those pay, or else the
    usual budget. mixed: of a mixture, whose windows of small records take gigabytes."""
    if not (records.remote or records.whole_files or (_small(records) and not mixed)):
        return READ_AHEAD_BYTES
    return max(READ_AHEAD_BYTES, min(window_bytes, MAX_WINDOW_BYTES))


def _small(records: RecordsInfo) -> bool:
    return records.num_bytes < PAGE_BYTES * records.num_records
