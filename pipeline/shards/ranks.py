"""The rank of a record: a keyed hash of its key, which decides its place in the split. Pure.

Conversions sort by it, so they need no shuffle and no central list. docs/format.md freezes it: it must never change."""

import hashlib

import numpy as np


def ranks(seed: int, split: str, keys: np.ndarray) -> np.ndarray:
    """uint64 [n]: the rank of each key. keys: bytes (dtype S)."""
    prefix = f"{seed}\0{split}\0".encode()
    digests = b"".join(hashlib.blake2b(prefix + key, digest_size=8).digest() for key in keys.tolist())
    return np.frombuffer(digests, ">u8").astype(np.uint64)
