"""The digest of a split's keys: a sum of hashes, so it depends neither on their order nor on who computes which part.

Conversions and the index builder write it; the split verifier recomputes it. docs/format.md freezes it. Pure."""

import hashlib
from collections.abc import Iterable


def key_digest(keys: Iterable[bytes]) -> int:
    """The sum of the 128-bit hashes of keys, or of other items, modulo 2^128."""
    return add_digests(int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big") for key in keys)


def add_digests(digests: Iterable[int]) -> int:
    """The digest of a set from those of its parts."""
    return sum(digests) & ((1 << 128) - 1)
