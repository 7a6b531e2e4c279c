"""Which measurements a device gets by default, how the time is divided among them, and the one of dispatches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pipeline.sizes import MiB
from trainer.measuring.bandwidths import measure_memory, measure_transfers
from trainer.measuring.choices import MEASUREMENTS
from trainer.measuring.products import Product, convolution, matmul, measure_products
from trainer.measuring.repeating import Clock, Deadline, repeat
from trainer.measuring.rows import Row, per_call

__all__ = ["Plan", "measure", "measure_dispatches"]

_DTYPES: Mapping[str, Sequence[str]] = {
    "cpu": ("float32", "bfloat16"),
    "gpu": ("bfloat16", "float16", "float32", "float32_highest"),
    "tpu": ("bfloat16", "float32", "float32_highest"),
}
_CPU_SIZES, _SIZES = (256, 512, 1024, 2048), (1024, 2048, 4096, 8192)
_RESNET50 = ((56, 64), (28, 128), (14, 256), (7, 512))  # side and channels of its 3x3 convolutions: equally many FLOPs
_TRANSFERS = (MiB, 64 * MiB)
_DISPATCHES = 200


@dataclass(frozen=True)
class Plan:
    """What to measure on a device. measurements and dtypes: by their names in `choices`.

    sizes: of square matrices. array_bytes: the size of the array in memory, which also limits that of transfers.
    None: what suits the device. seconds: about how long it may take, compiling included."""

    measurements: Sequence[str]
    dtypes: Sequence[str] | None
    sizes: Sequence[int] | None
    array_bytes: int | None
    seconds: float

    def products(self, measurement: str, platform: str) -> Iterator[Sequence[Product]]:
        """For each dtype, products from small to large. The first is small on any device of the platform."""
        cpu = platform == "cpu"
        for dtype in self.dtypes or _DTYPES.get(platform, ("float32",)):
            if measurement == "matmul":
                small, *larger = _CPU_SIZES if cpu else _SIZES
                yield [matmul(size, dtype) for size in sorted({small, *(self.sizes or larger)})]
            else:
                small, large = (1, 8) if cpu else (8, 256)
                first = convolution(small, *_RESNET50[0], dtype)
                yield [first, *(convolution(large, *each, dtype) for each in _RESNET50)]


def measure(plan: Plan, device: Any, clock: Clock) -> Iterator[Row]:
    """Runs the plan, and yields each row as soon as it is measured."""
    total = sum(MEASUREMENTS[name] for name in plan.measurements)
    array_bytes = plan.array_bytes or (256 if device.platform == "cpu" else 1024) * MiB
    for name in plan.measurements:
        deadline = Deadline.after(plan.seconds * MEASUREMENTS[name] / total, clock)
        if name in ("matmul", "convolution"):
            series = list(plan.products(name, device.platform))
            for number, products in enumerate(series):
                yield from measure_products(products, device, deadline.share(len(series) - number))
        elif name == "memory":
            yield measure_memory(array_bytes, device, deadline)
        elif name == "transfer":
            yield from measure_transfers(sorted({min(size, array_bytes) for size in _TRANSFERS}), device, deadline)
        else:
            yield from measure_dispatches(device, deadline)


def measure_dispatches(device: Any, deadline: Deadline) -> Iterator[Row]:
    """Two rows: of dispatches that each wait for their result, and of ones that only the last result is awaited of.

    The first is the latency that a program pays which reads something from the device in every step; the second is what
    remains when the host runs ahead, as a training does. The program adds 1 to a scalar: its own work takes
    no measurable time."""
    add_one = jax.jit(lambda number: number + 1)
    number = jax.block_until_ready(add_one(jax.device_put(jnp.float32(0), device)))

    def synchronous() -> None:
        for _ in range(_DISPATCHES):
            jax.block_until_ready(add_one(number))

    def asynchronous() -> None:
        last = number
        for _ in range(_DISPATCHES):
            last = add_one(last)
        jax.block_until_ready(last)

    ways: dict[str, Callable[[], None]] = {"synchronous": synchronous, "asynchronous": asynchronous}
    for left, (way, call) in zip((2, 1), ways.items(), strict=True):
        call()
        yield per_call("dispatch", way, _DISPATCHES, repeat(call, deadline.share(left)))
