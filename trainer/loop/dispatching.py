"""The loop: plans which steps go into which dispatch, launches dispatches, and reads their scalars
one dispatch late.

Generic over the carry: training carries a TrainState, evaluation the tallies of its metrics."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from trainer.hosts.activity import Activity, Dispatching
from trainer.hosts.exits import Ending
from trainer.loop.compiled import Compiled
from trainer.loop.feed import Chunk

_MOST_PLANNED = 10**7  # steps
MEASURED_STEPS = 10  # single-step dispatches, which determine the length of all others


@dataclass(frozen=True)
class Marks:
    """Steps that no dispatch crosses: the multiples of each of `every`, and the steps in `once`."""

    every: Collection[int] = ()
    once: Collection[int] = ()

    def last(self, step: int) -> int:
        """The last mark at or before this step; 0 if there is none."""
        multiples = [step // each * each for each in self.every]
        return max([0, *multiples, *(mark for mark in self.once if mark <= step)])

    def following(self, step: int, end: float) -> float:
        """The first mark after this step, or the end."""
        multiples = [step // each * each + each for each in self.every]
        return min([end, *multiples, *(mark for mark in self.once if mark > step)])


@dataclass(frozen=True)
class Steps:
    """The dispatches of one loop: from step `start` to `end` (None: until the input ends).

    k: the steps of a dispatch, or what returns them once they are measured: see timed_plan."""

    start: int
    end: int | None
    k: int | Callable[[], int]
    marks: Marks = Marks()

    def lengths(self) -> Iterator[int]:
        """The length of each dispatch."""
        end = math.inf if self.end is None else self.end
        if callable(self.k):
            return timed_plan(self.start, end, self.k, self.marks)
        return plan(self.start, end, self.k, self.marks)

    @property
    def compiled(self) -> set[int]:
        """The lengths to compile before the first dispatch."""
        if callable(self.k):
            return {1}
        # hundreds of millions of steps would take minutes to plan
        if self.end is None or self.k == 1 or self.end - self.start > _MOST_PLANNED:
            return {1, self.k}
        return {*self.lengths()}


def plan(start: int, end: float, k: int, marks: Marks = Marks(), origin: int = 0) -> Iterator[int]:
    """Lengths of the dispatches from step `start` to `end`: each is k or 1, none crosses a mark.

    The k-step dispatches are on a grid that starts at `origin` and after every mark: they depend
    only on the absolute step, so a run that stops anywhere and resumes makes the same ones."""
    step = start
    while step < end:
        begin = max(origin, marks.last(step))
        length = k if (step - begin) % k == 0 and step + k <= marks.following(step, end) else 1
        yield length
        step += length


def timed_plan(
    start: int, end: float, k: Callable[[], int], marks: Marks = Marks()
) -> Iterator[int]:
    """MEASURED_STEPS single steps, then the plan for k(), which may wait until they are measured.

    The positions of the k-step dispatches depend on the clock; their results do not."""
    measured = int(min(start + MEASURED_STEPS, end))
    yield from plan(start, measured, 1, marks)
    if measured < end:
        yield from plan(measured, end, k(), marks, origin=measured)


@dataclass(frozen=True)
class DispatchResult:
    """The result of one dispatch: scalars by name, each [length], of the steps start, start + 1,
    ...

    rows: what the steps return per record, on this host, each [rows, ...]."""

    start: int
    length: int
    scalars: dict[str, Any]
    rows: Any = None

    @property
    def end(self) -> int:
        """The last of these steps."""
        return self.start + self.length


@dataclass
class Dispatches:
    """Dispatches every chunk, from step `start` on. Iterating yields the step before each launch
    and at the end.

    There the carry is available, and may be replaced. Each launch is followed by `record` of the
    dispatch before it, so the devices never wait for the host; `settle` records the one that runs.
    An Ending while the input is late yields the same step again. ended: whether no chunk is left.
    launched: the number of dispatches. constants: see Compiled. activity: of the call."""

    carry: Any
    step: int
    chunks: Iterable[Chunk]
    program: Compiled
    record: Callable[[DispatchResult], None]
    activity: Activity = field(default_factory=Activity)
    constants: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.launched = 0
        self.ended = False
        self._left = iter(self.chunks)
        self._running: _Launched | None = None
        self._doing = Dispatching(self.step, None)
        # on the CPU, results are in host memory; copying costs 10 us each
        self._copies = jax.default_backend() != "cpu"

    def __iter__(self) -> Iterator[int]:
        with self.activity.dispatches(self.step) as self._doing:
            yield self.step
            while not self.ended:
                try:
                    self._doing.at = self._doing.INPUT
                    chunk = next(self._left, None)
                # raised while the input was late: whoever iterates saves all progress
                except Ending:
                    yield self.step
                    continue
                if chunk is None:
                    self.settle()  # so that this host knows what was decided before it asks again
                    self.ended = True
                else:
                    self.launch(chunk)
                    del chunk  # its batches are the devices'
                yield self.step

    def launch(self, chunk: Chunk) -> None:
        """Launches a dispatch without waiting, then records the one before it."""
        self._doing.at = self._doing.DEVICES
        with jax.profiler.StepTraceAnnotation("dispatch", step_num=chunk.start):  # 1 us
            self.carry, returned = self.program(
                self.carry, chunk.batches, chunk.stacked, *self.constants
            )
        for leaf in jax.tree.leaves(returned) if self._copies else ():
            leaf.copy_to_host_async()
        self.launched += 1
        self.step = self._doing.launched = chunk.start + chunk.length
        before = self._running
        self._running = _Launched(chunk.start, chunk.length, chunk.stacked, returned)
        self._finish(before)

    def launch_next(self) -> None:
        """Launches the next dispatch, which must be there."""
        self.launch(next(self._left))

    def settle(self) -> None:
        """Waits for the dispatch that runs, and records it."""
        running = self._running
        self._running = None
        self._finish(running)

    def _finish(self, dispatch: "_Launched | None") -> None:
        if dispatch is None:
            return
        self._doing.at = self._doing.DEVICES
        scalars, rows = self.program.read(dispatch.returned, dispatch.stacked)
        began = time.perf_counter()
        self._doing.finish(dispatch.start + dispatch.length, began)
        self._doing.at = self._doing.WORK
        self.record(DispatchResult(dispatch.start, dispatch.length, scalars, rows))
        self.activity.host_seconds += time.perf_counter() - began


class _Launched(NamedTuple):
    """A dispatch whose results have not been read."""

    start: int
    length: int
    stacked: bool
    returned: list[Any]
