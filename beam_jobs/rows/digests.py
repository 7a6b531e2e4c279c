"""Vectorized digests of rows: sums of hashes, which do not depend on the order of the rows.

They identify plans, and show whether a runner lost or repeated rows. They do not protect against
rows chosen to collide; the digest of keys in the manifest is of another kind."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pipeline.shards.naming import add_digests

# https://prng.di.unimi.it/splitmix64.c
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


class BucketSums(NamedTuple):
    """The sums over a bucket or part of one."""

    bytes: int = 0  # framed, of the good rows, as predicted
    records: int = 0  # all rows, including rejected ones
    row_digest: int = 0  # of everything that determines their bytes
    key_digest: int = 0  # of their ranks, which are hashes of their keys
    raw_digest: int = 0  # of their ranks and the versions of their raw files: see Stat


def add_sums(sums: Iterable[BucketSums]) -> BucketSums:
    """The total. Sizes and record counts are added like digests, because they stay far below the
    modulus."""
    return BucketSums(*map(add_digests, zip(*sums, strict=True)))


def mixed(values: np.ndarray) -> np.ndarray:
    """uint64 [n]: a hash of each number, uint64. Different numbers have different hashes."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def row_hashes(rank: np.ndarray, columns: Iterable[np.ndarray]) -> np.ndarray:
    """uint64 [rows]: a hash of each row, by its rank and its cells in columns of integers or
    bytes."""
    hashes = rank
    for column in columns:
        hashes = mixed(hashes + _STEP) ^ _numbers(column)
    return mixed(hashes + _STEP)


def text_hashes(texts: Iterable[bytes]) -> np.ndarray:
    """uint64 [n]: a hash of each text."""
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8")


def hash_sum(hashes: np.ndarray) -> int:
    """128 bits, to be added modulo 2^128: the sum of the hashes, uint64, and that of hashes of
    them."""
    return _sum(hashes) + (_sum(mixed(hashes + _STEP)) << 64) & ((1 << 128) - 1)


def _sum(numbers: np.ndarray) -> int:
    """The exact sum of fewer than 2^32 numbers."""
    return (int((numbers >> _HALF).sum()) << 32) + int((numbers & _LOW).sum())


def _numbers(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "S":
        return column.astype(np.uint64)
    different, place = np.unique(column, return_inverse=True)
    return text_hashes(different.tolist())[place]
