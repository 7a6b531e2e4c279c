"""The loop: plans dispatches, launches them, and reads their scalars one dispatch late.

Generic over what is carried: training carries a TrainState, evaluation the Variables."""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainer.feed import Chunk
from trainer.steps import Program

__all__ = ["Look", "plan", "run", "steps_that_fit"]


@dataclass(frozen=True)
class Look:
    """What one dispatch did: scalars by name, each [length], of the steps start, start + 1, ..."""

    start: int
    length: int
    scalars: dict[str, np.ndarray]


def plan(start: int, end: int, k: int, marks: Iterable[int] = ()) -> Iterator[int]:
    """Lengths of the dispatches from step `start` to `end`: each is k or 1, none crosses a multiple of a mark.

    The k-step dispatches stand on a grid that begins anew after every mark: they depend on the absolute step only,
    so a run that stops anywhere and goes on meets the same ones."""
    marks = tuple(marks)
    step = start
    while step < end:
        begin = max((step // mark * mark for mark in marks), default=0)
        stop = min((step // mark * mark + mark for mark in marks), default=end)
        length = k if (step - begin) % k == 0 and step + k <= min(stop, end) else 1
        yield length
        step += length


def steps_that_fit(k: int, marks: Iterable[int], step_bytes: int, cap_bytes: int) -> int:
    """The steps of one dispatch: k, less where a super-batch would exceed the cap or cross the nearest mark."""
    return max(1, min(k, cap_bytes // max(1, step_bytes), *marks))


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
