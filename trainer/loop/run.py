"""The loop: launches dispatches, and reads their scalars one dispatch late.

Generic over what is carried: training carries a TrainState, evaluation the Variables."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainer.loop.feed import Chunk
from trainer.loop.program import Program

__all__ = ["Look", "run"]


@dataclass(frozen=True)
class Look:
    """What one dispatch did: scalars by name, each [length], of the steps start, start + 1, ..."""

    start: int
    length: int
    scalars: dict[str, np.ndarray]


def run(
    carry: Any,
    chunks: Iterable[Chunk],
    program: Program,
    look: Callable[[Look], None],
    marks: Container[int] = (),
    at_mark: Callable[[int, Any], None] | None = None,
) -> Any:
    """Runs every chunk and returns what is carried at the end.

    `look` gets every dispatch once, in order, while the next one runs, so the device does not wait for the host.
    `at_mark(step, carry)` comes after the looks of all steps up to it, one of `marks`."""
    pending: tuple[Chunk, Any] | None = None
    for chunk in chunks:
        with jax.profiler.StepTraceAnnotation("dispatch", step_num=chunk.start):  # 1 us
            carry, scalars = program(carry, chunk.batches, chunk.stacked)
        for leaf in jax.tree.leaves(scalars):
            leaf.copy_to_host_async()
        if pending:
            look(_read(*pending))
        pending = (chunk, scalars)
        step = chunk.start + chunk.length
        if at_mark and step in marks:
            look(_read(*pending))
            pending = None
            at_mark(step, carry)
    if pending:
        look(_read(*pending))
    return carry


def _read(chunk: Chunk, scalars: list[dict[str, Any]]) -> Look:
    host = jax.device_get(scalars)
    stacked = host[0] if chunk.stacked else {name: np.stack([one[name] for one in host]) for name in host[0]}
    return Look(chunk.start, chunk.length, stacked)
