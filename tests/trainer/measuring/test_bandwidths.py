"""Bytes per second by hand, and that data really moves: between two calls, and to memory of its own."""

import itertools

import jax
import numpy as np
import pytest

from pipeline.sizes import MiB
from trainer.measuring import bandwidths
from trainer.measuring.bandwidths import measure_memory, measure_transfers
from trainer.measuring.plan import measure_dispatches
from trainer.measuring.products import matmul
from trainer.measuring.repeating import Deadline


class Ticking:
    """A clock that each look at moves by a second: every call takes one second."""

    now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


@pytest.fixture
def device():
    return jax.devices()[0]


@pytest.fixture
def deadline():
    return Deadline.after(1000, Ticking())


def test_memory_counts_each_byte_as_read_and_as_written(device, deadline):
    row = measure_memory(4 * MiB, device, deadline)
    assert (row.size, row.median, row.repetitions) == ("4 MiB", 2 * 4 * MiB / 1e9, 7)


def test_several_passes_are_one_call_where_one_is_short(device):
    clock = Ticking()
    passes = bandwidths._Passes(4096, device, Deadline.after(1000, lambda: clock() / 200))  # 5 ms per call
    before = np.array(passes._array)
    passes.fill_a_call()
    assert passes.count == 10
    passes()  # with the one that took 5 ms, an odd number of negations
    np.testing.assert_array_equal(passes._array, -before)


def test_all_work_is_done_on_the_device_that_was_asked_for():
    device = jax.devices()[-1]
    passes = bandwidths._Passes(4096, device, Deadline.after(1000, Ticking()))
    to_host = bandwidths._ToHost([np.zeros(64, np.uint8)], device)
    to_host.prepare()
    arrays = [*matmul(8, "bfloat16").operands(device), passes._array, *to_host._arrays]
    assert [array.devices() for array in arrays] == [{device}] * 4


def test_a_large_array_that_there_is_no_time_for_is_not_made(device):
    row = measure_memory(10**15, device, Deadline.after(1000, Ticking()))
    assert row.median is None
    assert row.skipped.startswith(f"would take {5 * 10**15 / (16 * MiB):.2g} s, ")


def test_an_array_that_does_not_fit_is_a_row_that_says_so(device, monkeypatch):
    monkeypatch.setattr(bandwidths, "_FIRST_BYTES", 10**16)
    assert "RESOURCE_EXHAUSTED" in measure_memory(10**15, device, Deadline.after(1000, Ticking())).skipped


def test_transfers_count_each_byte_once_in_both_directions(device, deadline, monkeypatch):
    monkeypatch.setattr(bandwidths, "_CALL_BYTES", 4 * MiB)
    rows = list(measure_transfers([MiB, 4 * MiB], device, deadline))
    found = [(row.measurement, row.size, row.median) for row in rows]
    of = {1: 4 * MiB / 1e9, 4: 2 * 4 * MiB / 1e9}  # four arrays per call; at least two
    ways = ("host_to_device", "device_to_host")
    assert found == [(way, f"{size} MiB", of[size]) for size in (1, 4) for way in ways]


def test_what_goes_to_the_device_differs_and_is_not_shared_with_the_host(device, deadline, monkeypatch):
    given, put = [], jax.device_put

    def watched(array, *args):
        result = put(array, *args)
        shared = result.unsafe_buffer_pointer() == array.ctypes.data
        given.append((id(array), array.tobytes(), shared, np.array_equal(array, result)))
        return result

    monkeypatch.setattr(jax, "device_put", watched)
    monkeypatch.setattr(bandwidths, "_CALL_BYTES", MiB)
    list(measure_transfers([MiB // 4], device, deadline))
    assert len(given) == 4 * (1 + 7) + 4  # a call to begin with, seven timed ones, and what is to come back
    assert len({content for _, content, _, _ in given}) == 4
    assert all(one[0] != other[0] for one, other in itertools.pairwise(given[:32]))
    assert {(shared, equal) for _, _, shared, equal in given} == {(False, True)}


def test_what_comes_from_the_device_is_new_each_time_and_copied(device):
    to_host = bandwidths._ToHost([np.arange(64, dtype=np.uint8)], device)
    fetched, fetch = [], to_host._fetch
    to_host._fetch = lambda array: fetched.append((array, fetch(array)))
    for _ in range(3):
        to_host.prepare()
        to_host()
    first, second, third = (copy for _, copy in fetched)
    assert (first.tolist(), second.tolist()) == ([255 - i for i in range(64)], [*range(64)])
    assert third.tolist() == first.tolist()
    assert len({id(array) for array, _ in fetched}) == 3
    assert all(copy.flags.owndata for _, copy in fetched)


def test_a_dispatch_is_a_two_hundredth_of_a_call(device, deadline):
    synchronous, asynchronous = measure_dispatches(device, deadline)
    assert (synchronous.size, asynchronous.size) == ("synchronous", "asynchronous")
    assert synchronous.median == asynchronous.median == 5000  # microseconds: 200 of them take a second
