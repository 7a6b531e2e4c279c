"""How many workers make the batches if nobody has said so, and that the batches do not depend on it."""

import hashlib
import logging
import os
import sys
import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import psutil
import pytest
from bad_pictures import OPS
from host_batches import assert_same, taken
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweep import SWEEP
from worker_ops import Fault

from pipeline import machine
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.decoding import row_threads
from pipeline.errors import CorruptRecordError, StallError
from pipeline.inputs import dataset_input
from pipeline.inputs.batches import Cost, choose_workers
from pipeline.inputs.worker_pool import WorkerBatches
from pipeline.machine import num_cores, share_cores
from pipeline.spec import ArraySpec

PHOTOGRAPH = Cost(0.0012, 0.09)  # seconds, share of them that holds the GIL
PYTHON = Cost(0.005, 0.98)
NUMBERS = Cost(0.00001, None)
IMAGENET = 1_281_167
MEGABYTE = bytes(2**20)
RECORDS = {"number": np.arange(64)}


def running_workers(number):
    """Whether this process has so many of them within ten seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        children = [each.as_dict(["cmdline"])["cmdline"] for each in psutil.Process().children()]
        if (
            sum("pipeline.inputs.worker" in " ".join(command or ()) for command in children)
            == number
        ):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("cores", "rows", "records", "cost", "workers"),
    [
        (2, 256, IMAGENET, PHOTOGRAPH, 0),
        (4, 256, IMAGENET, PHOTOGRAPH, 0),
        (8, 256, IMAGENET, PHOTOGRAPH, 2),
        (16, 256, IMAGENET, PHOTOGRAPH, 4),
        (64, 256, IMAGENET, PHOTOGRAPH, 16),
        (64, 4, IMAGENET, PHOTOGRAPH, 4),  # no more than rows
        (16, 256, 50_000, PHOTOGRAPH, 4),  # an evaluation
        (16, 256, 1000, PHOTOGRAPH, 0),  # a second of work
        (2, 256, IMAGENET, PYTHON, 2),
        (16, 256, IMAGENET, PYTHON, 16),
        (16, 256, IMAGENET, Cost(0.00026, 0.65), 10),  # PNGs of 28 pixels
        (16, 256, IMAGENET, Cost(0.00026, 0.55), 9),
        (2, 256, IMAGENET, Cost(0.00026, 0.55), 0),  # two cores make 1.8 of one
        (1, 256, 10**7, NUMBERS, 0),
        (2, 256, 10**7, NUMBERS, 2),  # one worker is no faster than a thread
        (4, 256, 10**7, NUMBERS, 2),
        (8, 256, 10**7, NUMBERS, 2),
        (16, 256, 10**7, NUMBERS, 4),
        (64, 256, 10**7, NUMBERS, 16),
        (64, 256, 60_000, NUMBERS, 0),
    ],
)
def test_workers_are_chosen_by_cores_cost_and_size(cores, rows, records, cost, workers):
    assert choose_workers(cores, rows, records, cost) == workers


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "450000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
    ids=["none", "no quota", "quota", "quota above", "half a core", "version 1", "none in 1"],
)
def test_a_quota_of_a_cgroup_counts_like_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert num_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("bound", "processes", "cores"), [(16, 1, 16), (16, 4, 4), (16, 32, 1), (4, 4, 4)]
)
def test_processes_share_the_cores_that_they_are_not_bound_to(
    tmp_path, monkeypatch, bound, processes, cores
):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(bound))
    monkeypatch.setattr(machine, "_sharing", [1])
    share_cores(processes)
    assert num_cores(tmp_path) == cores


def test_batches_are_the_same_before_and_after_workers_take_over(pictures, two_workers, caplog):
    caplog.set_level(logging.INFO)
    options = {"global_batch": 8, "ops": OPS, "seed": 5, "read_ahead_bytes": 1}
    plain = train_dataset(pictures[0], workers=0, **options)
    auto = train_dataset(pictures[0], **options)
    start = plain.advance(plain.start, 3)
    expected = taken(plain, start, 12)
    assert_same(taken(auto, start, 12), expected)
    assert "2 worker processes make the batches (" in caplog.text
    batches = auto.batches(start)
    assert isinstance(batches, WorkerBatches)  # decided once
    assert_same([next(batches) for _ in expected], expected)
    batches.close()
    plain, auto = (
        eval_dataset(pictures[0], global_batch=2, ops=OPS, read_ahead_bytes=1, **kind)
        for kind in ({"workers": 0}, {})
    )
    assert_same(taken(auto), taken(plain))


def test_an_epoch_that_ends_while_it_is_measured_starts_no_workers(pictures, two_workers):
    source = eval_dataset(pictures[0], global_batch=100, ops=OPS)
    assert len(taken(source)) == 1
    assert source._workers == "auto"


@dataclass(frozen=True)
class InANotebook:
    reads = ("number",)

    def output_spec(self, specs):
        return {"twice": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {"twice": np.int32(2 * features["number"])}


InANotebook.__module__ = "__main__"


@pytest.mark.parametrize("why", ["of a notebook", "cache='ram'"])
def test_what_workers_cannot_have_stays_in_threads_and_one_line_says_so(why, two_workers, caplog):
    caplog.set_level(logging.INFO)
    data = {"number": np.arange(64)}
    options = {"ops": [InANotebook()]} if why == "of a notebook" else {"cache": "ram"}
    source = train_dataset(data, global_batch=8, read_ahead_bytes=1, **options)
    assert len(taken(source, count=6)) == 6
    [line] = [
        r.getMessage() for r in caplog.records if "in threads of this process" in r.getMessage()
    ]
    assert ("InANotebook" if "ops" in options else "cache='ram'") in line


class OfAModule(InANotebook):
    """Of a module that no other process can import."""


def test_workers_that_cannot_start_leave_the_batches_to_threads(two_workers, monkeypatch, caplog):
    module = ModuleType("only_here")
    module.OfAModule = OfAModule
    monkeypatch.setitem(sys.modules, "only_here", module)
    monkeypatch.setattr(OfAModule, "__module__", "only_here")
    options = {"global_batch": 8, "ops": [OfAModule()], "read_ahead_bytes": 1}
    data = {"number": np.arange(64)}
    expected = taken(train_dataset(data, workers=0, **options), count=12)
    source = train_dataset(data, **options)
    assert_same(taken(source, count=12), expected)
    [line] = [
        r.getMessage() for r in caplog.records if "of worker processes failed" in r.getMessage()
    ]
    assert "only_here" in line
    assert type(source.batches()) is not WorkerBatches  # nor are they tried again


@pytest.mark.slow
def test_workers_that_stall_in_their_first_batch_are_waited_for_once(two_workers):
    op = Fault("is_suspended_in_a_worker", 18)
    options = {"global_batch": 8, "ops": [op], "read_ahead_bytes": 1, "stall_seconds": 6}
    with pytest.raises(StallError, match="waited 6 s for worker"):
        taken(eval_dataset(RECORDS, **options))


@pytest.mark.parametrize("threads", [None, 2, 32])
def test_a_process_decodes_in_no_more_threads_than_pay(monkeypatch, threads):
    monkeypatch.setattr(row_threads, "num_cores", lambda: 64)
    monkeypatch.setattr(row_threads, "THREADS", threads)
    assert row_threads._num_threads() == (2 if threads == 2 else 8)


def test_workers_that_die_in_their_first_batch_leave_all_batches_to_threads(two_workers, caplog):
    options = {"global_batch": 8, "ops": [Fault("dies_in_a_worker", 18)], "read_ahead_bytes": 1}
    source = eval_dataset(RECORDS, **options)
    assert_same(taken(source), taken(eval_dataset(RECORDS, workers=0, **options)))
    [line] = [
        r.getMessage() for r in caplog.records if "of worker processes failed" in r.getMessage()
    ]
    assert "was ended by signal 9" in line
    assert running_workers(0)


@pytest.mark.parametrize("start", [17, 21], ids=["a later one", "their first"])
def test_a_bad_record_of_workers_raises_the_error_of_threads(pictures, start, two_workers):
    """Record 23, in batches of one record, of which threads make two."""
    raised = []
    for workers in (0, "auto"):
        source = eval_dataset(
            pictures[1], global_batch=1, ops=OPS, read_ahead_bytes=1, workers=workers
        )
        batches = source.batches(source.advance(source.start, start))
        seen = []
        with pytest.raises(CorruptRecordError) as error:
            seen.extend(int(batch["_index"][0]) for batch in batches)
        raised.append((seen, str(error.value)))
        assert next(batches, None) is None
        assert batches.join(10)
    assert raised[1] == raised[0]
    assert running_workers(0)


@settings(max_examples=60 if SWEEP else 1, deadline=None)
@given(
    begun=st.sampled_from([0, "auto"]),
    steps=st.integers(1, 8),
    measured=st.integers(1, 3),
    read_ahead_bytes=st.sampled_from([1, 12_000]),  # batches one by one, or some together
)
@example(begun="auto", steps=5, measured=1, read_ahead_bytes=12_000)
def test_a_run_goes_on_bit_for_bit_whoever_made_the_batches_before(
    pictures, begun, steps, measured, read_ahead_bytes
):
    options = {"global_batch": 8, "ops": OPS, "seed": 5, "read_ahead_bytes": read_ahead_bytes}
    expected = taken(train_dataset(pictures[0], workers=0, **options), count=steps + 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_input, "choose_workers", lambda *_: 2)
        patch.setattr(dataset_input, "MEASURED", measured)
        first = train_dataset(pictures[0], workers=begun, **options)
        made = taken(first, count=steps)
        saved = first.state(first.advance(first.start, steps))
        second = train_dataset(pictures[0], **options)
        made += taken(second, second.restore(saved), 16)
        assert second._workers == 2
    assert_same(made, expected)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_workers_that_took_over_end_with_the_batches(how, two_workers):
    batches = train_dataset(RECORDS, global_batch=8, read_ahead_bytes=1).batches()
    for _ in range(4):
        next(batches)
    assert running_workers(2)
    if how == "closed":
        batches.close()
    else:
        del batches
    assert running_workers(0)


def test_batches_closed_while_workers_start_leave_none_running(two_workers, monkeypatch):
    source = train_dataset({"number": np.arange(64)}, global_batch=8, read_ahead_bytes=1)
    started = []
    after = source._after_the_first

    def closing(position):
        rest = after(position)
        batches.close()  # as by another thread
        started.append(rest[1])
        return rest

    monkeypatch.setattr(source, "_after_the_first", closing)
    batches = source.batches()
    for _ in range(3):
        next(batches)
    assert started[0].join(10)


@dataclass(frozen=True)
class Slow:
    """Takes 10 ms per record, with or without the GIL."""

    holds: bool
    reads = ("number",)

    def output_spec(self, specs):
        return {"twice": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            if not self.holds:
                hashlib.sha256(MEGABYTE)
        return {"twice": np.int32(2 * features["number"])}


def test_the_first_batch_shows_whether_ops_hold_the_gil():
    shares = []
    for holds in (True, False):
        source = train_dataset({"number": np.arange(32)}, global_batch=16, ops=[Slow(holds)])
        taken(source, count=1)
        shares.append(source._decode.cost.gil_share)
    assert 1 >= shares[0] > shares[1] >= 0  # how far apart depends on what else the machine does
