"""Random numbers for ops: a stream per record and op, the same on every machine and for every
version of NumPy.

The generator is Philox4x32-10 (Salmon et al. 2011) with the seed of a record and op as its key and
a counter from 0. One round of NumPy costs as much for a batch as for a record, so the records of a
batch share what is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_SHARED_WORDS = 64  # computed for a batch at once; ten windows need 41


@dataclass(eq=False)
class Rng:
    """The random numbers of one record for one op. Each call continues the stream.

    key: two int32, uniform over all bits, the seed of the stream; for an op that needs no more than
    these."""

    _batch: "_Batch"
    _row: int
    _next: int = 0

    @property
    def key(self) -> tuple[int, int]:
        first, second = self._batch.keys[self._row].tolist()
        return first, second

    def bits(self, count: int) -> np.ndarray:
        """uint32 [count], uniform over all bits."""
        begin = self._next
        self._next += count
        return self._batch.words(self._row, self._next)[begin:]

    def uniform(self, low: float = 0.0, high: float = 1.0, size: int | None = None) -> Any:
        """A float from [low, high), or float64 [size]: 53 random bits each."""
        words = self.bits(2 * (1 if size is None else size)).astype(np.uint64)
        unit = (
            (words[::2] >> np.uint64(5)) * 67108864.0 + (words[1::2] >> np.uint64(6))
        ) * 2.0**-53
        numbers = low + unit * (high - low)
        return float(numbers[0]) if size is None else numbers

    def integers(self, low: int, high: int, size: int | None = None) -> Any:
        """An int from [low, high), or int64 [size]. high - low: at most 2^32."""
        numbers = np.floor(self.uniform(0, high - low, size))
        return low + (int(numbers) if size is None else numbers.astype(np.int64))


@dataclass(eq=False)
class _Batch:
    """The streams of one op for the records of a batch. keys: int32 [n, 2]."""

    keys: np.ndarray
    _shared: np.ndarray | None = None

    def words(self, row: int, count: int) -> np.ndarray:
        """The first words of a record's stream: uint32 [count]."""
        if count > _SHARED_WORDS:
            return _philox(self.keys[row : row + 1], count)[0]
        if self._shared is None:
            self._shared = _philox(self.keys, _SHARED_WORDS)
        return self._shared[row, :count]


def rngs_of(keys: np.ndarray) -> Sequence[Rng]:
    """One for each of the keys, int32 [n, 2]."""
    batch = _Batch(keys)
    return [Rng(batch, row) for row in range(len(keys))]


def _philox(keys: np.ndarray, count: int) -> np.ndarray:
    """uint32 [n, count]: the first words of each key's stream."""
    key = np.ascontiguousarray(keys).view(np.uint32).astype(np.uint64)
    key0 = key[:, :1]
    key1 = key[:, 1:]
    counter = [np.zeros((len(keys), -(-count // 4)), np.uint64) for _ in range(4)]
    counter[0] += np.arange(counter[0].shape[1], dtype=np.uint64)
    for _ in range(10):
        product0 = counter[0] * _MULTIPLIERS[0]
        product1 = counter[2] * _MULTIPLIERS[1]
        counter = [
            (product1 >> _32) ^ counter[1] ^ key0,
            product1 & _LOW,
            (product0 >> _32) ^ counter[3] ^ key1,
            product0 & _LOW,
        ]
        key0 = (key0 + _WEYL[0]) & _LOW
        key1 = (key1 + _WEYL[1]) & _LOW
    return np.stack(counter, -1).reshape(len(keys), -1)[:, :count].astype(np.uint32)
