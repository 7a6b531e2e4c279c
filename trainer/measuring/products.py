"""TFLOP/s of matrix products and of the 3x3 convolutions of ResNet-50, by dtype and size.

A dispatch runs several products, each on the result of the one before: XLA can neither drop nor combine them, and the
latency of the dispatch does not count. Operands are arguments, so nothing is folded into constants. FLOPs are counted
as those of a training step are."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainer.loop.flops import flops
from trainer.measuring.choices import DTYPES
from trainer.measuring.repeating import MIN_REPETITIONS, Deadline, Times, repeat
from trainer.measuring.rows import Row, rate, skipped

__all__ = ["Product", "convolution", "matmul", "measure_products"]

_CALL_SECONDS = 0.05  # of a timed call: thousands of times the latency of a dispatch
_MAX_CHAIN = 256  # a random matrix is not orthogonal: after thousands of products, numbers overflow


@dataclass(frozen=True)
class Product:
    """One product to measure: `left` and the result have the same shape, so that products can be chained."""

    measurement: str
    size: str
    dtype: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    multiply: Callable[[jax.Array, jax.Array], jax.Array]

    def chained(self, times: int, unroll: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """The function left, right -> left x right x right ..., with this many products."""

        def run(left: jax.Array, right: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda each, _: (self.multiply(each, right), None), left, length=times, unroll=unroll)[
                0
            ]

        return run

    def operands(self, device: Any) -> tuple[jax.Array, jax.Array]:
        """Normal numbers, on the device. The right ones are scaled such that results are as large as the left ones."""
        rng, dtype = np.random.default_rng(0), DTYPES[self.dtype][0]
        left = rng.standard_normal(self.left, np.float32)
        right = rng.standard_normal(self.right, np.float32) / np.float32(math.sqrt(math.prod(self.right[:-1])))
        return jax.device_put(left, device).astype(dtype), jax.device_put(right, device).astype(dtype)

    @property
    def flops(self) -> float:
        """Of one product, as trainer.loop.flops counts them."""
        dtype = DTYPES[self.dtype][0]
        shapes = (jax.ShapeDtypeStruct(shape, dtype) for shape in (self.left, self.right))
        return flops(jax.make_jaxpr(self.multiply)(*shapes))


def matmul(size: int, dtype: str) -> Product:
    """The product of two square matrices: 2 size^3 FLOPs."""

    def multiply(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.dot(left, right, precision=DTYPES[dtype][1])

    return Product("matmul", f"{size}x{size}", dtype, (size, size), (size, size), multiply)


def convolution(batch: int, side: int, channels: int, dtype: str) -> Product:
    """A 3x3 convolution of images [batch, side, side, channels], padded to keep their size.

    2 (3 side - 2)^2 channels^2 FLOPs per image: products with the padding do not count."""

    def multiply(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            *(left, right, (1, 1), "SAME"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=DTYPES[dtype][1],
        )

    images = (batch, side, side, channels)
    return Product("convolution", "x".join(map(str, images)), dtype, images, (3, 3, channels, channels), multiply)


def measure_products(products: Sequence[Product], device: Any, deadline: Deadline) -> Iterator[Row]:
    """One row per product. The first is small: its speed tells which of the others there is time for.

    A product that the device cannot compute, for want of memory or of an implementation, has a row that says so."""
    seconds_per_flop = 0.0
    for number, product in enumerate(products):
        identity = (product.measurement, product.size, product.dtype, "tflops_per_second")
        expected = product.flops * seconds_per_flop * (2 + MIN_REPETITIONS)
        if expected > deadline.seconds_left:
            yield skipped(*identity, f"would take {expected:.2g} s, {deadline.seconds_left:.2g} s are left")
            continue
        try:
            amount, times = _measured(product, device, deadline.share(len(products) - number))
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            yield skipped(*identity, str(error).partition("\n")[0] or "out of memory")
            continue
        seconds_per_flop = times.median / amount
        yield rate(*identity, amount, times)


def _measured(product: Product, device: Any, deadline: Deadline) -> tuple[float, Times]:
    """FLOPs of a timed call, and its times."""
    left, right = product.operands(device)

    def call_of(length: int) -> Callable[[], object]:
        # XLA:CPU runs some kernels on one thread inside loops, so there are none.
        unroll = length if device.platform == "cpu" else min(length, 8)
        run = jax.jit(product.chained(length, unroll)).lower(left, right).compile()
        jax.block_until_ready(run(left, right))
        return lambda: jax.block_until_ready(run(left, right))

    call = call_of(1)
    began = deadline.clock()
    call()
    one = deadline.clock() - began
    length = min(_MAX_CHAIN if device.platform != "cpu" else 16, int(_CALL_SECONDS / one) or 1)
    return length * product.flops, repeat(call if length == 1 else call_of(length), deadline)
