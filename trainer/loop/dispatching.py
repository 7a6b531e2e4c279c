"""The loop: launches dispatches, and reads their scalars one dispatch late.

Generic over the carry: training carries a TrainState, evaluation an EvalState."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from trainer.exits import Ending
from trainer.loop.feed import Chunk
from trainer.loop.program import Program

__all__ = ["Between", "DispatchResult", "run"]


@dataclass(frozen=True)
class DispatchResult:
    """The result of one dispatch: scalars by name, each [length], of the steps start, start + 1, ...

    Outputs that are trees of other arrays have the same first dimension."""

    start: int
    length: int
    scalars: dict[str, Any]


class Between(Protocol):
    """Actions between dispatches, when the carry is available: saving, evaluating, ending early."""

    def due(self, step: int, ended: bool, /) -> bool:
        """Whether to pause at this step. Asked before every dispatch, again at the same step if an Ending ended the
        wait for the input, and at the last step once the input has `ended`."""
        ...

    def act(self, step: int, carry: Any, /) -> tuple[Any, bool]:
        """The carry to continue with, and whether to continue. `on_result` has had all earlier steps."""
        ...


def run(
    carry: Any,
    start: int,
    chunks: Iterable[Chunk],
    program: Program,
    on_result: Callable[[DispatchResult], None],
    between: Between | None = None,
) -> tuple[Any, int]:
    """Runs every chunk from step `start` on; returns the carry at the end and its step.

    `on_result` gets all results in order, each while the next dispatch runs, so the device never waits for the
    host."""
    pending: tuple[Chunk, Any] | None = None
    step, source, ended = start, iter(chunks), False
    copies = jax.default_backend() != "cpu"  # on the CPU, scalars are in host memory; copying costs 10 us each
    while True:
        if between is not None and between.due(step, ended):
            pending = _reported(pending, on_result)
            carry, go_on = between.act(step, carry)
            if not go_on:
                break
        if ended:
            break
        try:
            chunk = next(source, None)
        except Ending:  # raised while the input was late: the pauses save all progress
            continue
        if chunk is None:
            pending = _reported(pending, on_result)  # so that this host knows what was decided before it asks again
            ended = True
            continue
        with jax.profiler.StepTraceAnnotation("dispatch", step_num=chunk.start):  # 1 us
            carry, scalars = program(carry, chunk.batches, chunk.stacked)
        for leaf in jax.tree.leaves(scalars) if copies else ():
            leaf.copy_to_host_async()
        _reported(pending, on_result)
        pending = (chunk, scalars)
        step = chunk.start + chunk.length
    _reported(pending, on_result)
    return carry, step


def _reported(pending: tuple[Chunk, Any] | None, on_result: Callable[[DispatchResult], None]) -> None:
    if pending:
        on_result(_read(*pending))


def _read(chunk: Chunk, scalars: list[dict[str, Any]]) -> DispatchResult:
    host = jax.device_get(scalars)
    stacked = host[0] if chunk.stacked else jax.tree.map(lambda *steps: np.stack(steps), *host)
    return DispatchResult(chunk.start, chunk.length, stacked)
