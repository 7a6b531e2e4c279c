"""The dispatch plan, and that the loop looks once at each step, one dispatch late."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.hosts.exits import Preempted
from trainer.loop.dispatching import Dispatches, Marks, Steps, plan
from trainer.loop.feed import Chunk

counts = st.integers(1, 60)
marks = st.lists(counts, max_size=2)
stops = st.sets(st.integers(1, 300), max_size=2)


def boundaries(start, lengths):
    return np.cumsum([start, *lengths]).tolist()


@given(start=st.integers(0, 200), more=counts, k=counts, marks=marks, stops=stops)
def test_dispatches_have_k_or_1_steps_and_cross_no_mark_or_stop(start, more, k, marks, stops):
    end = start + more
    lengths = list(plan(start, end, k, Marks(marks, stops)))
    assert set(lengths) <= {1, k}
    assert sum(lengths) == more
    due = {step for mark in marks for step in range(0, end, mark)} | stops
    assert {step for step in due if start < step < end} <= set(boundaries(start, lengths))


@given(first=counts, second=counts, k=counts, marks=marks, stops=stops)
def test_a_resumed_run_dispatches_as_the_straight_one(first, second, k, marks, stops):
    end = first + second
    straight = boundaries(0, plan(0, end, k, Marks(marks, stops)))
    resumed = boundaries(first, plan(first, end, k, Marks(marks, stops)))
    # Up to where the straight run first stands again; from there on everything is the same.
    meet = min(step for step in straight if step >= first)
    assert [step for step in resumed if step >= meet] == [step for step in straight if step >= meet]
    if first in stops or any(first % mark == 0 for mark in marks):
        assert meet == first


def test_a_plan_is_mostly_whole_dispatches():
    assert list(plan(0, 25, 7, Marks([10]))) == [7, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1]
    assert list(plan(3, 20, 7)) == [1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1]
    assert list(plan(0, 20, 7, Marks(once={8, 15}))) == [7, 1, 7, 1, 1, 1, 1, 1]


def test_a_run_without_an_end_in_sight_is_not_planned_to_its_end():
    began = time.monotonic()
    assert Steps(0, 10**12, 100).compiled == {1, 100}
    assert time.monotonic() - began < 1


class Pending:
    """A scalar that is still being computed: to read it is to wait."""

    shape, dtype = (), np.dtype(np.float32)

    def __init__(self, number, events):
        self._number, self._events = number, events

    def copy_to_host_async(self):
        pass

    def __array__(self, *_, **__):
        self._events.append(f"wait for {self._number}")
        return np.float32(0)


class Launching:
    """Stands for a Compiled: launches by a function."""

    def __init__(self, launch):
        self._launch = launch

    def __call__(self, carry, batches, stacked):
        return self._launch(carry, batches)

    def read(self, returned, stacked):
        return jax.tree.map(lambda *steps: np.stack(steps), *jax.device_get(returned)), {}


def test_the_host_waits_for_a_dispatch_only_when_the_next_one_is_launched():
    events = []

    def launch(carry, batches):
        events.append(f"launch {batches[0]}")
        return carry, [{"loss": Pending(batches[0], events)}]

    chunks = [Chunk(i, 1, (i,), False) for i in range(4)]
    assert list(Dispatches(0, 0, chunks, Launching(launch), lambda result: None)) == [
        0,
        1,
        2,
        3,
        4,
        4,
    ]
    assert events == [
        *(
            "launch 0",
            "launch 1",
            "wait for 0",
            "launch 2",
            "wait for 1",
            "launch 3",
            "wait for 2",
            "wait for 3",
        )
    ]


def test_metrics_are_read_one_dispatch_later_and_completely_at_a_mark():
    events = []

    def launch(carry, batches):
        events.append(f"launch {batches[0]}")
        return carry + 1, [{"loss": jnp.float32(batches[0])}]

    def observe(seen):
        events.append(f"look {seen.scalars['loss'].tolist()}")

    chunks = [Chunk(i, 1, (i,), False) for i in range(4)]

    dispatches = Dispatches(10, 0, chunks, Launching(launch), observe)
    for step in dispatches:
        if step == 2:
            dispatches.settle()
            events.append(f"mark 2 {dispatches.carry}")
            dispatches.carry = 22
        if dispatches.ended:
            events.append(f"ended {step} {dispatches.carry} {dispatches.launched}")
    assert events == [
        *("launch 0", "launch 1", "look [0.0]", "look [1.0]", "mark 2 12"),
        *("launch 2", "launch 3", "look [2.0]", "look [3.0]", "ended 4 24 4"),
    ]


def test_a_late_input_that_is_to_end_pauses_at_the_same_step():
    def late():
        yield Chunk(0, 1, (0,), False)
        yield Chunk(1, 1, (1,), False)

    class Late:
        def __init__(self):
            self.chunks, self.calls = late(), 0

        def __iter__(self):
            return self

        def __next__(self):
            self.calls += 1
            if self.calls == 2:
                raise Preempted("SIGTERM")
            return next(self.chunks)

    def launch(carry, batches):
        return carry + 1, [{"loss": jnp.float32(0)}]

    dispatches = Dispatches(0, 0, Late(), Launching(launch), lambda result: None)
    assert list(dispatches) == [0, 1, 1, 2, 2]
    assert (dispatches.carry, dispatches.launched) == (2, 2)


def test_a_request_to_end_that_comes_from_a_result_ends_the_loop():
    def record(result):
        raise Preempted("SIGTERM")

    dispatches = Dispatches(
        0, 0, [Chunk(0, 1, (0,), False)], Launching(lambda carry, _: (carry, [{}])), record
    )
    with pytest.raises(Preempted):
        list(dispatches)
