"""GB/s of the device's memory and of transfers between the host and the device."""

import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.sizes import MiB
from trainer.measuring.repeating import Deadline, repeat
from trainer.measuring.rows import Row, rate, skipped

__all__ = ["measure_memory", "measure_transfers"]

_CALL_SECONDS = 0.05
_MAX_PASSES = 256
_ARRAYS = 4  # more than one, since a device or driver may keep what it was given last


def measure_memory(num_bytes: int, device: jax.Device, deadline: Deadline) -> Row:
    """Negates a float32 array in place. Every byte is read once and written once, and both count.

    num_bytes: much more than the caches hold. Each pass is a dispatch of its own, which is enqueued before the last one
    ends: XLA would fuse several passes of one dispatch into one."""
    identity = ("memory", _mebibytes(num_bytes), "float32", "gigabytes_per_second")
    negate = jax.jit(jnp.negative, donate_argnums=0)
    try:
        array = jax.block_until_ready(negate(jnp.arange(num_bytes // 4, dtype=jnp.float32, device=device)))
    except jax.errors.JaxRuntimeError as error:
        return skipped(*identity, str(error).partition("\n")[0])

    def passes(times: int) -> None:
        nonlocal array
        for _ in range(times):
            array = negate(array)
        jax.block_until_ready(array)

    passes(1)
    began = deadline.clock()
    passes(1)
    times = min(_MAX_PASSES, int(_CALL_SECONDS / (deadline.clock() - began)) or 1)
    passes(times)
    return rate(*identity, 2 * array.nbytes * times, repeat(lambda: passes(times), deadline))


def measure_transfers(sizes: Sequence[int], device: jax.Device, deadline: Deadline) -> Iterator[Row]:
    """For each size in bytes, to the device and back. Each transfer is of an array that was not transferred before it.

    The host's arrays are ordinary, pageable memory that has been written to, as batches are. Allocating memory for the
    result is part of a transfer. On a CPU, JAX would share memory instead; there, both are copies within it."""
    for number, size in enumerate(sizes):
        to_device, to_host = _ToDevice(size, device), _ToHost(size, device)
        for name, transfer in (("host_to_device", to_device), ("device_to_host", to_host)):
            left = 2 * (len(sizes) - number) - (transfer is to_host)
            transfer.prepare()
            transfer()
            times = repeat(transfer, deadline.share(left), transfer.prepare)
            yield rate(name, _mebibytes(size), "uint8", "gigabytes_per_second", size, times)


class _ToDevice:
    def __init__(self, size: int, device: jax.Device) -> None:
        self._device = device
        self._arrays = itertools.cycle(_random(number, size) for number in range(_ARRAYS))
        self.prepare()

    def prepare(self) -> None:
        self._array = next(self._arrays)

    def __call__(self) -> jax.Array:
        return jax.block_until_ready(jax.device_put(self._array, self._device, may_alias=False))


class _ToHost:
    def __init__(self, size: int, device: jax.Device) -> None:
        self._array = jax.device_put(_random(0, size), device)
        self._invert = jax.jit(jnp.bitwise_not)
        # Of a CPU's array, np.asarray is a view. Elsewhere, np.array would copy what was transferred once more.
        self._fetch = np.array if device.platform == "cpu" else np.asarray

    def prepare(self) -> None:
        # A new array with new values: a jax.Array keeps the result of np.asarray and would return it again.
        self._array = jax.block_until_ready(self._invert(self._array))

    def __call__(self) -> np.ndarray:
        return self._fetch(self._array)


def _random(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / MiB:g} MiB"
