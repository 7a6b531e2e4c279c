"""The shuffled sequence of one source's records, as streams that can be entered anywhere: a pure function of the seed.

Orders cut batches from it. Blocks of records that stand together are permuted, then records inside windows, so that
few large reads serve a good shuffle. Pure NumPy: no I/O, no batches, no hosts."""

import functools
import math
from collections.abc import Iterator

import numpy as np

from pipeline.orders.hashing import BLOCKS, WINDOWS, permutation
from pipeline.shards.errors import OptionError

__all__ = ["Shuffle", "default_block_records", "default_window_records"]

BLOCK_BYTES = 1_000_000  # one ranged read
LEAST_BLOCKS = 16_384  # fewer, and the streams of small data would never change
WINDOW_BLOCKS = 2_048  # what 1,024 rows are drawn from: 0.88 of a true shuffle on data sorted by class


def default_block_records(mean_record_bytes: float, num_records: int) -> int:
    """As many records as make a read of 1 MB, but at least 16,384 blocks."""
    by_size = math.ceil(BLOCK_BYTES / max(mean_record_bytes, 1.0))
    return max(1, min(by_size, math.ceil(num_records / LEAST_BLOCKS)))


def default_window_records(block_records: int, streams: int, global_batch: int) -> int:
    """A stream's share of 2,048 blocks for every 1,024 rows of a batch: those come from so many of the streams."""
    return max(1, WINDOW_BLOCKS * block_records * math.ceil(global_batch / 1024) // streams)


class Shuffle:
    """Records 0..N-1 in an endless order, cut into C streams of N/C records an epoch, give or take one.

    The blocks that begin at `block_starts` are permuted anew for every epoch; each stream takes an equal part of that
    sequence and shuffles it inside windows of W records."""

    def __init__(
        self, num_records: int, block_starts: np.ndarray, *, seed: int, streams: int, window_records: int
    ) -> None:
        if window_records < 1:
            raise OptionError(f"window_records={window_records} must be at least 1.")
        self.num_records, self.streams, self.window_records = num_records, streams, window_records
        self._seed, self._starts = seed, np.append(block_starts, num_records)
        # A batch needs the same window of a stream many times, and an epoch boundary needs two epochs' blocks.
        # ImageNet: 2 MB of blocks an epoch, 330 KB of windows.
        self._blocks = functools.lru_cache(2)(self._permuted_blocks)
        self._window = functools.lru_cache(2 * streams + 1)(self._shuffled_window)

    @property
    def shortest(self) -> int:
        """Records that every stream has in an epoch, at least."""
        return self.num_records // self.streams

    def length(self, stream: int) -> int:
        """Records of a stream in an epoch."""
        low, high = self._bounds(stream)
        return high - low

    def records(self, stream: int, epoch: int, at: int, wanted: int) -> Iterator[tuple[int, np.ndarray]]:
        """So many records of a stream from its place `at` in an epoch on, also over its end: (epoch, ids int64)."""
        length = self.length(stream)
        while wanted:
            window, inside = divmod(at, self.window_records)
            ids = self._window(epoch, stream, window)[inside : inside + wanted]
            yield epoch, ids
            wanted, at = wanted - len(ids), at + len(ids)
            if at == length:
                epoch, at = epoch + 1, 0

    def _bounds(self, stream: int) -> tuple[int, int]:
        return stream * self.num_records // self.streams, (stream + 1) * self.num_records // self.streams

    def _shuffled_window(self, epoch: int, stream: int, window: int) -> np.ndarray:
        low, high = self._bounds(stream)
        first = low + window * self.window_records
        count = min(self.window_records, high - first)
        blocks, ends = self._blocks(epoch)
        begin, last = np.searchsorted(ends, [first, first + count - 1], side="right").tolist()
        # The window's blocks one after the other, and then shuffled: to look up each record's block is dearer.
        lows, stops = self._starts[blocks[begin : last + 1]], self._starts[blocks[begin : last + 1] + 1]
        lows[0] = stops[0] - (ends[begin] - first)  # of the first and the last block it may have a part only
        stops[-1] -= ends[last] - (first + count)
        sizes = stops - lows
        ids = np.repeat(lows - (np.cumsum(sizes) - sizes), sizes) + np.arange(count)
        return ids[permutation(count, self._seed, WINDOWS, epoch, stream, window)]

    def _permuted_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks in an epoch's order, and where in its sequence each ends."""
        blocks = permutation(len(self._starts) - 1, self._seed, BLOCKS, epoch)
        return blocks, np.cumsum(np.diff(self._starts)[blocks])
