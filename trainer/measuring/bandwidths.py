"""GB/s of the device's memory and of transfers between the host and the device."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.sizes import MiB
from trainer.measuring.repeating import MIN_REPETITIONS, Deadline, repeat
from trainer.measuring.rows import Row, rate, skipped

__all__ = ["measure_memory", "measure_transfers"]

_CALL_SECONDS = 0.05
_MAX_PASSES = 256
_FIRST_BYTES = 16 * MiB
_CALL_BYTES, _MAX_ARRAYS = 128 * MiB, 32


def measure_memory(num_bytes: int, device: Any, deadline: Deadline) -> Row:
    """Negates a float32 array in place. Every byte is read once and written once, and both count.

    num_bytes: much more than the caches hold. Each pass is a dispatch of its own, which is enqueued before the last one
    ends: XLA would fuse several passes of one dispatch into one. 16 MiB are measured first: their speed tells whether
    there is time for more."""
    identity = ("memory", _mebibytes(num_bytes), "float32", "gigabytes_per_second")
    try:
        if num_bytes > _FIRST_BYTES:
            first = repeat(_Passes(_FIRST_BYTES, device, deadline), deadline.share(10))
            expected = first.shortest * num_bytes / _FIRST_BYTES * (2 + MIN_REPETITIONS)
            if expected > deadline.seconds_left:
                return skipped(*identity, f"would take {expected:.2g} s, {deadline.seconds_left:.2g} s are left")
        passes = _Passes(num_bytes, device, deadline)
        passes.fill_a_call()
        return rate(*identity, 2 * num_bytes * passes.count, repeat(passes, deadline))
    except jax.errors.JaxRuntimeError as error:
        return skipped(*identity, str(error).partition("\n")[0])


class _Passes:
    """A call passes over the array `count` times: at first once, after `fill_a_call` for about 50 ms."""

    def __init__(self, num_bytes: int, device: Any, deadline: Deadline) -> None:
        self._negate = jax.jit(jnp.negative, donate_argnums=0)
        self._array = jnp.arange(num_bytes // 4, dtype=jnp.float32, device=device)
        self._clock, self.count = deadline.clock, 1
        self()

    def fill_a_call(self) -> None:
        began = self._clock()
        self()
        self.count = min(_MAX_PASSES, int(_CALL_SECONDS / (self._clock() - began)) or 1)

    def __call__(self) -> None:
        for _ in range(self.count):
            self._array = self._negate(self._array)
        jax.block_until_ready(self._array)


def measure_transfers(sizes: Sequence[int], device: Any, deadline: Deadline) -> Iterator[Row]:
    """For each size in bytes, to the device and back: one array after another, each with values of its own.

    The host's arrays are ordinary, pageable memory that has been written to, as batches are. Allocating memory for the
    result is part of a transfer. On a CPU, JAX would share memory instead; there, both are copies within it."""
    for number, size in enumerate(sizes):
        count, left = max(2, min(_MAX_ARRAYS, _CALL_BYTES // size)), 2 * (len(sizes) - number)
        identity = (_mebibytes(size), "uint8", "gigabytes_per_second", size * count)
        arrays = [_random(seed, size) for seed in range(count)]

        def to_device(arrays: Sequence[np.ndarray] = arrays) -> None:
            for array in arrays:
                jax.block_until_ready(jax.device_put(array, device))

        to_device()
        yield rate("host_to_device", *identity, repeat(to_device, deadline.share(left)))
        to_host = _ToHost(arrays, device)
        to_host()
        yield rate("device_to_host", *identity, repeat(to_host, deadline.share(left - 1), to_host.prepare))


class _ToHost:
    """Copies all arrays. `prepare` has to be called between two calls."""

    def __init__(self, arrays: Sequence[np.ndarray], device: Any) -> None:
        self._arrays = [jax.device_put(array, device) for array in arrays]
        self._invert = jax.jit(lambda arrays: [~array for array in arrays], donate_argnums=0)
        # Of a CPU's array, np.asarray is a view. Elsewhere, np.array would copy what was transferred once more.
        self._fetch = np.array if device.platform == "cpu" else np.asarray

    def prepare(self) -> None:
        """New arrays with new values: a jax.Array keeps the result of np.asarray and would return it again."""
        self._arrays = jax.block_until_ready(self._invert(self._arrays))

    def __call__(self) -> None:
        for array in self._arrays:
            self._fetch(array)


def _random(seed: int, size: int) -> np.ndarray:
    """Not aligned to 64 bytes, as large NumPy arrays rarely are: a CPU's device shares those that are, and JAX 0.10.2
    heeds neither `donate` nor `may_alias=False` for them."""
    memory = np.empty(size + 64, np.uint8)
    start = (16 - memory.ctypes.data) % 64
    array = memory[start : start + size]
    array[:] = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return array


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / MiB:g} MiB"
