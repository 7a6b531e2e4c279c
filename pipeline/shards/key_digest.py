"""The digest of a split's keys: a sum of hashes, so it depends neither on their order nor on who computes which part.

Conversions and the index builder write it; the split verifier recomputes it. FORMAT.md freezes it. Pure."""

import hashlib
from collections.abc import Iterable


def key_digest(keys: Iterable[bytes]) -> int:
    """The sum of the keys' 128-bit hashes modulo 2^128."""
    return sum_of_hashes(keys)


def sum_of_hashes(items: Iterable[bytes]) -> int:
    """The same sum over items other than keys."""
    return add_digests(int.from_bytes(hashlib.blake2b(item, digest_size=16).digest(), "big") for item in items)


def add_digests(digests: Iterable[int]) -> int:
    """The digest of a set from those of its parts."""
    return sum(digests) & ((1 << 128) - 1)
