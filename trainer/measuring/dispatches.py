"""Microseconds of a dispatch: of a program that adds 1 to a scalar, whose own work takes no measurable time."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from trainer.measuring.repeating import Deadline, repeat
from trainer.measuring.rows import Row, per_call

__all__ = ["measure_dispatches"]

_DISPATCHES = 200


def measure_dispatches(device: Any, deadline: Deadline) -> Iterator[Row]:
    """Two rows: of dispatches that each wait for their result, and of ones that only the last result is awaited of.

    The first is the latency that a program pays which reads something from the device in every step; the second is what
    remains when the host runs ahead, as a training does."""
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
