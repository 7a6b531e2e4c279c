"""Hashes of the keys of records: the rank that decides a record's place, and the digest of a split's keys. Pure.

docs/format.md freezes both: they must never change."""

import hashlib
from collections.abc import Iterable

import numpy as np


def ranks(seed: int, split: str, keys: np.ndarray) -> np.ndarray:
    """uint64 [n]: the rank of each key. keys: bytes (dtype S)."""
    prefix = f"{seed}\0{split}\0".encode()
    digests = b"".join(hashlib.blake2b(prefix + key, digest_size=8).digest() for key in keys.tolist())
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def key_digest(keys: Iterable[bytes]) -> int:
    """The sum of the 128-bit hashes of keys, or of other items, modulo 2^128."""
    return add_digests(int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big") for key in keys)


def add_digests(digests: Iterable[int]) -> int:
    """The digest of a set from those of its parts."""
    return sum(digests) & ((1 << 128) - 1)
