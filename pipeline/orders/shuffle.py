"""The shuffled records of one source, as streams with random access: a pure function of the seed.

Orders cut batches from it. Blocks of neighbouring records are permuted, then records inside
windows, so that a few large reads suffice for a good shuffle. Pure NumPy: no I/O, no batches, no
hosts.

Hashes serve as random numbers, also for ops: the same on every machine and for every version of
NumPy, unlike the streams of its Generator."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.checks import check_number

# The purpose of a hash is part of its key, so that different uses of one seed are unrelated.
BLOCKS, WINDOWS, RECORDS, MIXES, SOURCES, DEVICE = 1, 2, 3, 4, 5, 6
_HASHED_AT_ONCE = 1 << 20
_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
GAMMA = np.uint64(_GAMMA)
BLOCK_BYTES = 1_000_000  # one ranged read
LEAST_BLOCKS = 16_384  # with fewer, the streams of small data would never change
WINDOW_BLOCKS = 2_048  # per 1,024 rows: 0.88 of a true shuffle on data sorted by class


def splitmix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele et al. 2014) on uint64: a bijection, so distinct inputs
    stay distinct."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_key(*parts: int) -> np.uint64:
    """A hash of all parts and their order. Adding them would make (42, 1) equal to (43, 0)."""
    key = 0
    for part in parts:
        key = _finalised((key + _GAMMA & _MASK) ^ _finalised(part + _GAMMA & _MASK))
    return np.uint64(key)


def _finalised(x: int) -> int:
    # splitmix64 of one int: 5x faster than on an array of length 1, and a batch of 64 streams needs
    # hundreds.
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def permutation(n: int, key: np.uint64) -> np.ndarray:
    """0..n-1 (int64), sorted by a splitmix64 stream whose lowest bits are replaced by the number
    itself.

    So there are no ties, any sort yields the same permutation, and sorting values is 5x faster than
    an argsort."""
    bits = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    values = np.arange(n, dtype=np.uint64)
    for begin in range(0, n, _HASHED_AT_ONCE):  # there may be a hundred million
        some = values[begin : begin + _HASHED_AT_ONCE]
        some |= splitmix64(key + (some + np.uint64(1)) * GAMMA) & ~bits
    values.sort()
    values &= bits
    return values.view(np.int64)


def record_seeds(seed: int, epochs: np.ndarray, record_ids: np.ndarray) -> np.ndarray:
    """uint64 [n]: a hash of (seed, epoch, record id), so that augmentation depends on neither hosts
    nor step."""
    seeds = splitmix64(record_ids.astype(np.uint64) + GAMMA)
    for epoch in np.unique(epochs).tolist():
        seeds[epochs == epoch] ^= hash_key(seed, RECORDS, epoch)
    return splitmix64(seeds)


def op_seeds(seeds: np.ndarray, ops: int) -> np.ndarray:
    """int32 [n, ops, 2]: a separate seed for each op of each record, uniform over all bits."""
    salts = splitmix64(np.arange(1, ops + 1, dtype=np.uint64) * GAMMA)
    mixed = splitmix64(seeds[:, None] ^ salts).astype("<u8")
    return mixed.view("<i4").reshape(len(seeds), ops, 2)


def device_seeds(seeds: np.ndarray) -> np.ndarray:
    """uint32 [n, 2]: a seed per record for random numbers on the device, uniform over all bits."""
    mixed = splitmix64(seeds ^ hash_key(DEVICE)).astype("<u8")
    return mixed.view("<u4").reshape(len(seeds), 2).astype(np.uint32)


def default_block_records(mean_record_bytes: float, num_records: int) -> int:
    """Records per read of 1 MB, limited so that there are at least 16,384 blocks."""
    by_size = math.ceil(BLOCK_BYTES / max(mean_record_bytes, 1.0))
    return max(1, min(by_size, math.ceil(num_records / LEAST_BLOCKS)))


def default_window_records(block_records: int, streams: int, global_batch: int) -> int:
    """One stream's share of 2,048 blocks for every 1,024 rows of a batch."""
    return max(1, WINDOW_BLOCKS * block_records * math.ceil(global_batch / 1024) // streams)


class Blocks:
    """Consecutive blocks of `size` records, except for some that are shorter.

    short: the numbers of the shorter ones, ascending. lacking: how many records each lacks. A
    hundred million blocks of equal size therefore take no memory."""

    def __init__(self, size: int, short: np.ndarray, lacking: np.ndarray) -> None:
        self.size = size
        self.short = short
        self.lacking = lacking
        self._before = np.cumsum([0, *lacking], dtype=np.int64)  # all that the first n lack
        self._begins = self.begin(short)

    @staticmethod
    def that_begin(starts: range | np.ndarray, num_records: int) -> "Blocks":
        """Blocks that begin at these records, of which the first is 0."""
        if isinstance(starts, range):
            lacking = np.array([-num_records % starts.step])
            short = np.array([len(starts) - 1])
            return Blocks(starts.step, short[lacking > 0], lacking[lacking > 0])
        sizes = np.diff(starts, append=num_records)
        short = np.flatnonzero(sizes < sizes.max())
        return Blocks(int(sizes.max()), short, sizes.max() - sizes[short])

    def begin(self, blocks: np.ndarray) -> np.ndarray:
        """int64: the first record of each of these blocks."""
        return blocks * self.size - self._before[np.searchsorted(self.short, blocks)]

    def holding(self, record: int) -> int:
        """The number of the block that contains a record."""
        before = int(np.searchsorted(self._begins, record, side="right")) - 1
        if before < 0:
            return record // self.size
        beyond = record - int(self._begins[before]) + int(self.lacking[before])
        return int(self.short[before]) + beyond // self.size

    def permuted(self, blocks: np.ndarray) -> "Blocks":
        """The same blocks in another order. blocks: their numbers."""
        places = np.flatnonzero(np.isin(blocks, self.short))
        lacking = self.lacking[np.searchsorted(self.short, blocks[places])]
        return Blocks(self.size, places, lacking)


class Shuffle:
    """Records 0..N-1 in an endless order, cut into C streams of about N/C records per epoch
    (lengths differ by one).

    The blocks that start at `block_starts` are permuted differently in every epoch; each stream
    takes an equal part of that sequence and shuffles it inside windows of W records."""

    def __init__(
        self,
        num_records: int,
        block_starts: range | np.ndarray,
        *,
        seed: int,
        streams: int,
        window_records: int,
    ) -> None:
        check_number("window_records", window_records, at_least=1)
        self.num_records = num_records
        self.streams = streams
        self.window_records = window_records
        self.seed = seed
        self.block_starts = block_starts
        self._stored = Blocks.that_begin(block_starts, num_records)
        # Batches need the same window of a stream many times, and an epoch boundary needs the
        # blocks of two epochs: 4 bytes per MB of data and epoch.
        self._blocks = functools.lru_cache(2)(self._permuted_blocks)
        self._window = functools.lru_cache(2 * streams + 1)(self._shuffled_window)

    def __reduce__(self) -> tuple[Any, ...]:  # without the caches, which cannot be pickled
        make = functools.partial(
            Shuffle, seed=self.seed, streams=self.streams, window_records=self.window_records
        )
        return make, (self.num_records, self.block_starts)

    def length(self, stream: int) -> int:
        """Records per epoch of a stream."""
        low, high = self._bounds(stream)
        return high - low

    def records(
        self, stream: int, epoch: int, at: int, count: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (epoch, ids int64) of `count` records from place `at` in an epoch of a stream,
        even past its end."""
        length = self.length(stream)
        while count:
            window, inside = divmod(at, self.window_records)
            ids = self._window(epoch, stream, window)[inside : inside + count]
            yield epoch, ids
            count -= len(ids)
            at += len(ids)
            if at == length:
                epoch += 1
                at = 0

    def _bounds(self, stream: int) -> tuple[int, int]:
        low, high = (at * self.num_records // self.streams for at in (stream, stream + 1))
        return low, high

    def _shuffled_window(self, epoch: int, stream: int, window: int) -> np.ndarray:
        low, high = self._bounds(stream)
        first = low + window * self.window_records
        count = min(self.window_records, high - first)
        blocks, sequence = self._blocks(epoch)
        begin, last = map(sequence.holding, (first, first + count - 1))
        # List the window's blocks in sequence, then shuffle: looking up each record's block costs
        # more.
        inside = blocks[begin : last + 1].astype(np.int64)
        lows, stops = map(self._stored.begin, (inside, inside + 1))
        # the first and the last block may be partly outside
        begins, end = sequence.begin(np.array([begin, last + 1])).tolist()
        lows[0] += first - begins
        stops[-1] -= end - (first + count)
        sizes = stops - lows
        ids = np.repeat(lows - (np.cumsum(sizes) - sizes), sizes) + np.arange(count)
        return ids[permutation(count, hash_key(self.seed, WINDOWS, epoch, stream, window))]

    def _permuted_blocks(self, epoch: int) -> tuple[np.ndarray, Blocks]:
        """The numbers of the blocks in the order of an epoch, and this sequence."""
        blocks = permutation(len(self.block_starts), hash_key(self.seed, BLOCKS, epoch))
        blocks = blocks.astype(np.uint32)
        return blocks, self._stored.permuted(blocks)
