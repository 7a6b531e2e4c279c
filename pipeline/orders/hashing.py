"""Hashes used as random numbers: the same on every machine and for every version of NumPy.

Orders permute with them, ops draw from them. NumPy only, but not its Generator, whose streams may change."""

import numpy as np

# The purpose of a hash is part of its key, so that different uses of one seed are unrelated.
BLOCKS, WINDOWS, RECORDS, MIXES, SOURCES, DEVICE = 1, 2, 3, 4, 5, 6
_MASK, _GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15
GAMMA = np.uint64(_GAMMA)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele et al. 2014) on uint64: a bijection, so distinct inputs stay distinct."""
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
    # splitmix64 of one int: 5x faster than on an array of length 1, and a batch of 64 streams needs hundreds.
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def permutation(n: int, key: np.uint64) -> np.ndarray:
    """0..n-1 (int64), sorted by a splitmix64 stream whose lowest bits are replaced by the number itself.

    So there are no ties, any sort yields the same permutation, and sorting values is 5x faster than an argsort."""
    bits = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    stream = splitmix64(key + np.arange(1, n + 1, dtype=np.uint64) * GAMMA)
    return (np.sort((stream & ~bits) | np.arange(n, dtype=np.uint64)) & bits).astype(np.int64)


def record_seeds(seed: int, epochs: np.ndarray, record_ids: np.ndarray) -> np.ndarray:
    """uint64 [n]: a hash of (seed, epoch, record id), so that augmentation depends on neither hosts nor step."""
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
