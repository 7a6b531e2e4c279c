"""The loop: plans which steps go into which dispatch, launches dispatches, and reads their scalars one dispatch late.

Generic over the carry: training carries a TrainState, evaluation an EvalState."""

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax

from trainer.hosts.activity import Activity, Dispatches
from trainer.hosts.exits import Ending
from trainer.loop.feed import Chunk
from trainer.loop.program import Program

MEASURED_STEPS = 10  # single-step dispatches, which determine the length of all others


@dataclass(frozen=True)
class Marks:
    """Steps that no dispatch crosses: the multiples of each of `every`, and the steps in `once`."""

    every: Collection[int] = ()
    once: Collection[int] = ()

    def last(self, step: int) -> int:
        """The last mark at or before this step; 0 if there is none."""
        return max([0, *(step // each * each for each in self.every), *(one for one in self.once if one <= step)])

    def following(self, step: int, end: float) -> float:
        """The first mark after this step, or the end."""
        return min([end, *(step // each * each + each for each in self.every), *(o for o in self.once if o > step)])


@dataclass(frozen=True)
class Steps:
    """The dispatches of one loop: from step `start` to `end` (None: until the input ends), of the lengths it yields.

    compiled: the lengths to compile before the first dispatch."""

    start: int
    end: int | None
    lengths: Callable[[], Iterator[int]]
    compiled: frozenset[int]

    @classmethod
    def planned(cls, start: int, end: int | None, k: int, marks: Marks = Marks()) -> "Steps":
        """See `plan`."""
        lengths = partial(plan, start, math.inf if end is None else end, k, marks)
        if end is None or (k == 1 and start < end):  # a hundred million single steps need not be counted
            return cls(start, end, lengths, frozenset([1, k]))
        return cls(start, end, lengths, frozenset(lengths()))

    @classmethod
    def timed(cls, start: int, end: int | None, k: Callable[[], int], marks: Marks = Marks()) -> "Steps":
        """See `timed_plan`."""
        return cls(start, end, partial(timed_plan, start, math.inf if end is None else end, k, marks), frozenset([1]))

    @classmethod
    def of_epoch(cls, steps: int | None, k: int) -> "Steps":
        """Of an epoch of this many steps; None: single ones, until the input ends."""
        if steps is not None:
            return cls.planned(0, steps, k)
        return cls(0, None, partial(itertools.repeat, 1), frozenset([1]))


def plan(start: int, end: float, k: int, marks: Marks = Marks(), origin: int = 0) -> Iterator[int]:
    """Lengths of the dispatches from step `start` to `end`: each is k or 1, none crosses a mark.

    The k-step dispatches are on a grid that starts at `origin` and after every mark: they depend only on the absolute
    step, so a run that stops anywhere and resumes makes the same ones."""
    step = start
    while step < end:
        begin = max(origin, marks.last(step))
        length = k if (step - begin) % k == 0 and step + k <= marks.following(step, end) else 1
        yield length
        step += length


def timed_plan(start: int, end: float, k: Callable[[], int], marks: Marks = Marks()) -> Iterator[int]:
    """MEASURED_STEPS single steps, then the plan for k(), which may wait until they are measured.

    The positions of the k-step dispatches depend on the clock; their results do not."""
    measured = int(min(start + MEASURED_STEPS, end))
    yield from plan(start, measured, 1, marks)
    if measured < end:
        yield from plan(measured, end, k(), marks, origin=measured)


def steps_that_fit(k: int, marks: Iterable[int], step_bytes: int, cap_bytes: int) -> int:
    """The steps of one dispatch: k, or fewer if a super-batch would exceed the cap or cross the first mark."""
    return max(1, min(k, cap_bytes // max(1, step_bytes), *marks))


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
    host. The activity of a Feeder is told how far the dispatches are."""
    pending: _Launched | None = None
    step, source, ended = start, iter(chunks), False
    copies = jax.default_backend() != "cpu"  # on the CPU, scalars are in host memory; copying costs 10 us each
    activity = getattr(chunks, "activity", Activity())
    with activity.dispatches(start) as doing:
        while True:
            if between is not None and between.due(step, ended):
                pending = _reported(pending, on_result, activity, doing)
                carry, go_on = between.act(step, carry)
                if not go_on:
                    break
            if ended:
                break
            try:
                doing.at = doing.INPUT
                chunk = next(source, None)
            except Ending:  # raised while the input was late: the pauses save all progress
                continue
            if chunk is None:
                # So that this host knows what was decided before it asks again.
                pending, ended = _reported(pending, on_result, activity, doing), True
                continue
            doing.at = doing.DEVICES
            with jax.profiler.StepTraceAnnotation("dispatch", step_num=chunk.start):  # 1 us
                carry, scalars = program(carry, chunk.batches, chunk.stacked)
            for leaf in jax.tree.leaves(scalars) if copies else ():
                leaf.copy_to_host_async()
            step = doing.launched = chunk.start + chunk.length
            _reported(pending, on_result, activity, doing)
            pending = _Launched(chunk.start, chunk.length, partial(program.read, scalars, chunk.stacked))
            del chunk  # its batches are the devices'
        _reported(pending, on_result, activity, doing)
    return carry, step


class _Launched(NamedTuple):
    """A dispatch whose results have not been read."""

    start: int
    length: int
    read: Callable[[], Any]


def _reported(
    pending: _Launched | None, on_result: Callable[[DispatchResult], None], activity: Activity, doing: Dispatches
) -> None:
    if pending:
        doing.at = doing.DEVICES
        result = DispatchResult(pending.start, pending.length, pending.read())
        began = time.perf_counter()
        doing.finish(result.start + result.length, began)
        doing.at = doing.WORK
        on_result(result)
        activity.host_seconds += time.perf_counter() - began
