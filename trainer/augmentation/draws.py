"""Random numbers of a record from its `_seed`, independent of devices, hosts and resumes."""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from scipy.special import betaincinv

from pipeline.errors import InputError
from trainer.inputs import SEED
from trainer.task import Batch

__all__ = ["beta", "uniform"]

_BETA_BITS = 12


def uniform(batch: Batch, stream: str, count: int) -> jax.Array:
    """float32 [b, count], uniform in [0, 1): Threefry-2x32 of each record's `_seed` and the stream's name.

    Streams with different names are independent; equal names give equal numbers. Raises InputError for a batch without
    `_seed`."""
    if SEED not in batch:
        raise InputError(
            f"{stream} draws from {SEED}, which the batch does not have; it has {', '.join(sorted(batch))}. Use "
            f"train_dataset, which delivers it, or let your iterable deliver {SEED}: uint32 [b, 2], different for each "
            "record and epoch."
        )
    # The hash itself, because streams of jax.random depend on flags and versions.
    counts = np.concatenate([np.arange(count), np.full(count, zlib.crc32(stream.encode()))]).astype(np.uint32)
    bits = jax.vmap(lambda seed: threefry_2x32((seed[0], seed[1]), counts)[:count])(batch[SEED])
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def beta(u: jax.Array, alpha: float) -> jax.Array:
    """float32 with the distribution Beta(alpha, alpha), from uniform numbers `u` in [0, 1).

    From a table of 4,096 quantiles, because rejection algorithms change between versions."""
    return jnp.asarray(_quantiles(alpha))[(u * 2**_BETA_BITS).astype(jnp.int32)]


@functools.cache
def _quantiles(alpha: float) -> np.ndarray:
    middles = (np.arange(2**_BETA_BITS) + 0.5) / 2**_BETA_BITS
    return np.round(betaincinv(alpha, alpha, middles) * 2**20).astype(np.float32) / np.float32(2**20)
