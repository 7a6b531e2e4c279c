"""How fast JAX computes on a device, and how fast data reaches it: the limits of any training
there.

    python examples/device_speed.py

TFLOP/s of matrix products, GB/s of memory and of transfers to the device, microseconds per
dispatch: each is the median of five repetitions on the first device. float32 is computed in JAX's
default precision, which is TF32 on GPUs and bfloat16 on TPUs."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

REPETITIONS, SECONDS = 5, 0.2  # of each repetition, about


def seconds_per_call(call: Callable[[Any], Any], value: Any) -> float:
    """The median. Each call gets the result of the one before, and the host runs ahead of the
    device."""
    value, count, taken = jax.block_until_ready(call(value)), 1, []  # the first call compiles
    for _ in range(1 + REPETITIONS):
        began = time.perf_counter()
        for _ in range(count):
            value = call(value)
        jax.block_until_ready(value)
        taken.append((time.perf_counter() - began) / count)
        count = max(1, int(SECONDS / taken[-1]))
    return median(taken[1:])  # the first one only tells how long a call takes


def measurements(side: int, megabytes: int) -> Iterator[tuple[str, float, str]]:
    """(what, value, unit) of products of square matrices and of arrays of this size."""
    for dtype in ("bfloat16", "float32"):
        left, right = jax.random.normal(jax.random.key(0), (2, side, side), dtype)
        # The operands stay the same: products of products grow or vanish, which changes a device's
        # power and speed.
        seconds = seconds_per_call(lambda _, left=left, right=right: left @ right, None)
        # a multiply-add is two
        yield (f"product of {dtype} matrices", 2 * side**3 / seconds / 1e12, "TFLOP/s")
    array = jnp.ones(megabytes * 250_000)
    seconds = seconds_per_call(jax.jit(jnp.negative, donate_argnums=0), array)
    yield "memory, read and written", 2 * array.nbytes / seconds / 1e9, "GB/s"
    # From pageable memory, as batches are; a CPU would share an aligned array instead of copying
    # it.
    batch = np.ones(megabytes * 1_000_000 + 1, np.uint8)[1:]
    seconds = seconds_per_call(lambda _: jax.block_until_ready(jax.device_put(batch)), None)
    yield "transfer to the device", batch.nbytes / seconds / 1e9, "GB/s"
    yield (
        "dispatch",
        1e6 * seconds_per_call(jax.jit(lambda n: n + 1), jnp.zeros(())),
        "microseconds",
    )


if __name__ == "__main__":
    device, small = jax.local_devices()[0], jax.default_backend() == "cpu"
    print(f"{device.device_kind} ({device.platform}), JAX {jax.__version__}")
    for what, value, unit in measurements(1024 if small else 8192, 64 if small else 256):
        print(f"{what:30} {value:10.3g} {unit}")
