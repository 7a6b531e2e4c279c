"""The order of a split's records: by a keyed hash of their names, so it needs no shuffle and no central list. Pure."""

import hashlib

import numpy as np

from beam_jobs.references import References

__all__ = ["in_order", "ranks"]


def ranks(seed: int, split: str, keys: np.ndarray) -> np.ndarray:
    """uint64: the place of each record in its split. FORMAT.md fixes this hash; it must never change."""
    prefix = f"{seed}\0{split}\0".encode()
    digests = b"".join(hashlib.blake2b(prefix + key, digest_size=8).digest() for key in keys.tolist())
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def in_order(seed: int, split: str, refs: References) -> References:
    """The rows sorted by (rank, key); rows of one key by all that they hold, so that it never matters which came first.

    One image may stand in a table twice, with two labels: then even their places are the same."""
    uris = np.array([file.uri.encode("utf-8", "surrogateescape") for file in refs.files] or [b""], "S")
    place = uris[refs.file] if len(refs) else refs.key
    rank = ranks(seed, split, refs.key)
    order = np.lexsort((refs.offset, place, refs.key, rank))
    key = refs.key[order]
    if (key[1:] == key[:-1]).any():  # rare, so the columns are sorted only then
        columns = [refs.columns[name] for name in sorted(refs.columns)]
        order = np.lexsort((*columns, refs.error, refs.size, refs.offset, place, refs.key, rank))
    return refs.take(order)
