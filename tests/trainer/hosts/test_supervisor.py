"""What ends a call or a process, with threads for hosts; real processes are in tests/e2e/test_supervision.py."""

import contextlib
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from host_stores import stores_of

from pipeline.errors import CheckpointError, InputError
from trainer.config import TrainerConfig
from trainer.hosts import activity, failures, supervisor
from trainer.hosts.activity import Activity
from trainer.hosts.exits import WATCHER, Interrupted, Preempted
from trainer.hosts.supervisor import Supervisor


class LeftError(Exception):
    """In place of the end of this process."""


@pytest.fixture
def left(monkeypatch):
    """The exit codes with which this process would have ended."""
    codes = []

    def leave(code):
        codes.append(code)
        raise LeftError

    monkeypatch.setattr(supervisor, "leave", leave)
    monkeypatch.setattr(supervisor, "depart", lambda _: None)
    return codes


@pytest.fixture
def clock(monkeypatch):
    """A list whose only element is the time of time.monotonic."""
    now = [100.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    return now


def limits(**settings):
    return TrainerConfig(workdir="unused", global_batch_size=1, **settings)


def hosts_of(count, **settings):
    """A Supervisor for each host, all of the same call."""
    made = [Supervisor(limits(**settings), store=store) for store in stores_of(count)]
    for each in made:
        each.exchange.call = each._call = made[0]._call
    return made


def outcome(host, fails):
    """The text of the error that a call ends with, in which `fails(exchange)` may raise."""
    try:
        with WATCHER.watching(host), host.reporting():
            fails(host.exchange)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("odd", [0, 1])
def test_an_error_of_one_host_ends_the_waits_of_the_others_with_its_first_line(odd):
    def fails(exchange):
        if exchange.index == odd:
            raise ValueError("the disk is full\nand warm")
        exchange.from_host_0("value", lambda: exchange.wait(lambda: None, 60))

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(outcome, hosts_of(3), [fails] * 3)]
    assert found.pop(odd) == "ValueError: the disk is full\nand warm"
    assert found == [f"HostError: host {odd} of 3 failed: ValueError: the disk is full"] * 2


def test_a_failure_of_one_host_ends_every_later_call_and_one_that_all_have_raised_none(monkeypatch):
    monkeypatch.setattr(supervisor, "SETTLE_SECONDS", 0.2)
    first, second = hosts_of(2)
    outcome(first, lambda _: 1 / 0)
    assert (
        outcome(second, lambda _: None)
        == "HostError: host 0 of 2 failed: ZeroDivisionError: division by zero"
    )
    assert failures.failure_of(second._store)  # it has come too late to settle it

    barrier = threading.Barrier(2)

    def fails(exchange):
        barrier.wait()
        raise InputError(f"the data of host {exchange.index}")

    hosts = hosts_of(2)
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(outcome, hosts, [fails] * 2)]
    assert found == ["InputError: the data of host 0", "InputError: the data of host 1"]
    assert failures.failure_of(hosts[0]._store) is hosts[0].failed is None


@pytest.mark.parametrize(
    "kind", [ValueError, pytest.param(CheckpointError, marks=pytest.mark.slow)]
)
def test_a_collective_that_fails_because_a_host_failed_reports_that_host(kind):
    first, second = hosts_of(2)
    lost = ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")

    def fails(_):
        threading.Timer(
            0.3, failures.report, (second._store, first._call, "its machine is gone")
        ).start()
        if kind is ValueError:
            raise lost
        raise CheckpointError(f"cannot write to the disk: {lost}") from lost

    assert outcome(first, fails) == "HostError: host 1 of 2 failed: its machine is gone"


def test_a_single_process_is_told_nothing_of_its_own_errors():
    (alone,) = hosts_of(1)
    assert (
        outcome(alone, lambda _: (_ for _ in ()).throw(InputError("as it was")))
        == "InputError: as it was"
    )
    alone.check()


@pytest.mark.parametrize(
    ("heard", "ends"),
    [
        ([("SIGTERM", 0.0)], False),
        ([("SIGTERM", 0.0), ("SIGTERM", 0.9)], False),  # a launcher passed it on
        ([("SIGTERM", 0.0), ("SIGTERM", 0.9), ("SIGTERM", 1.5)], True),
        ([("SIGINT", 0.0), ("SIGTERM", 2.0)], True),
        ([("SIGINT", 0.0), ("SIGINT", 0.1)], True),
    ],
)
def test_a_second_request_ends_the_process_and_says_which_step_is_saved(
    left, clock, capfd, heard, ends
):
    (alone,) = hosts_of(1)
    alone.activity.saved = 20
    with contextlib.suppress(LeftError):
        for name, at in heard:
            clock[0] = 100 + at
            alone.asked(name)
    assert left == [130 if heard[0][0] == "SIGINT" else 75] * ends
    assert (
        "a second time, so it ends without saving: step 20 is the last" in capfd.readouterr().err
    ) == ends
    with pytest.raises(Interrupted if heard[0][0] == "SIGINT" else Preempted):
        alone.check()


def stand_still(host, seconds, clock):
    """Looks after the call for so long, in which it makes no progress. Returns when the process ended, if it did."""
    for _ in range(int(2 * seconds)):
        clock[0] += 0.5
        try:
            host.tick()
        except LeftError:
            return clock[0] - 100
    return None


def test_a_process_that_was_asked_to_end_has_ten_seconds_for_the_next_progress(left, clock, capfd):
    (alone,) = hosts_of(1)
    with alone.activity.doing("in a callback"):
        alone.tick()
        alone.asked("SIGTERM")
        assert 10 <= stand_still(alone, 60, clock) <= 11
    assert left == [75]
    assert (
        "SIGTERM; no progress for 10 s; it is in a callback, so it ends without saving: noth"
        in capfd.readouterr().err
    )


def test_ctrl_c_in_a_notebook_waits_for_the_next_progress(left, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    (alone,) = hosts_of(1)
    alone.asked("SIGINT")
    assert stand_still(alone, 60, clock) is None
    with pytest.raises(KeyboardInterrupt):
        alone.check()


def test_a_process_that_was_asked_to_end_may_take_its_time_to_save(left, clock):
    (alone,) = hosts_of(1, work_seconds=100.0)
    with alone.activity.saving():
        alone.asked("SIGTERM")
        assert stand_still(alone, 150, clock) is None


def test_a_process_that_is_stuck_in_work_of_its_own_ends_after_the_limit_and_says_in_which(
    left, clock, capfd, caplog
):
    (alone,) = hosts_of(1, work_seconds=30.0)
    with alone.activity.doing("in on_loop_end of the callback Mine"):
        assert 30 <= stand_still(alone, 100, clock) <= 31
    assert left == [3]
    printed = capfd.readouterr().err
    assert (
        "error: no progress for 30 s: it is in on_loop_end of the callback Mine (limit 30 s)."
        in printed
    )
    assert "test_supervisor.py" in caplog.text  # the stacks


def test_progress_of_any_kind_starts_the_time_anew(left, clock):
    (alone,) = hosts_of(1, work_seconds=30.0)
    with alone.activity.dispatches(0) as loop:
        for step in range(5):
            loop.launched = step + 1
            assert stand_still(alone, 20, clock) is None
            with alone.activity.doing("evaluating"):
                assert stand_still(alone, 20, clock) is None
            loop.finish(step + 1, clock[0])
            assert stand_still(alone, 20, clock) is None


def test_time_in_which_the_process_was_suspended_does_not_count(left, clock):
    (alone,) = hosts_of(1, work_seconds=30.0)
    for _ in range(20):
        clock[0] += 3600
        alone.tick()
    assert left == []


def test_a_host_waits_for_its_devices_as_long_as_another_one_says_that_it_is_at_work(
    left, clock, capfd, caplog
):
    first, second = hosts_of(2, work_seconds=3000.0, host_timeout_seconds=40.0)
    with first.activity.doing("waiting for its devices", 40.0, waits=True):
        with second.activity.doing("exporting"):
            for _ in range(400):
                clock[0] += 0.5
                first.tick()
                second.tick()
        assert "waiting for its devices; host 1 of 2 is exporting" in caplog.text
        second.tick()  # it has done its work
        assert stand_still(first, 60, clock) <= 200 + 41
    assert left == [3]
    assert (
        "host 0 of 2 failed: no progress for 40 s: it is waiting for its devices"
        in capfd.readouterr().err
    )


def test_after_a_failure_the_main_thread_has_five_seconds_and_more_while_it_raises(
    left, clock, capfd
):
    first, second = hosts_of(2, host_timeout_seconds=60.0)
    first._raising = True
    failures.report(second._store, first._call, "its disk is on fire")
    with first.activity.doing("waiting for its devices", waits=True):
        assert stand_still(first, 20, clock) is None
        first._raising = False
        assert stand_still(first, 20, clock)
    assert left == [3]
    printed = capfd.readouterr().err
    assert (
        "error: host 1 of 2 failed: its disk is on fire (host 0 was waiting for its devices)"
        in printed
    )


def test_the_host_with_the_largest_share_of_own_time_is_told_on_host_0():
    first, second = hosts_of(2)
    assert second.slowest(0.6) == {}
    assert first.slowest(0.2) == {"slowest_host": 1, "slowest_share": 0.6}
    assert Supervisor().slowest(0.2) == {}


def test_after_three_dispatches_a_dispatch_may_take_twenty_usual_ones(monkeypatch):
    doing = Activity(limits(host_timeout_seconds=5.0, work_seconds=900.0))
    with doing.dispatches(0) as loop:
        loop.at = loop.DEVICES
        ends = itertools.accumulate([2.0] * 6)
        for step in range(4):
            loop.launched = step + 1
            assert doing.now()[1].limit == 900.0
            loop.finish(step + 1, next(ends))
        loop.launched = 6
        told = doing.now()[1]
        assert (told.limit, told.grace, told.waits) == (20 * 2 * 2.0, 4 * 2 * 2.0, True)
        assert "it has launched the steps up to 6, and 4 are finished" in told.what
        loop.at = loop.INPUT
        assert doing.now()[1].limit == float("inf")  # the feeder has a limit
        loop.at = loop.WORK
        assert doing.now()[1][1:3] == (900.0, False)
    assert activity.ASKED_SECONDS == 10


def test_a_place_changes_with_any_progress_and_names_the_innermost():
    doing, places = Activity(), []
    with doing.doing("opening"), doing.dispatches(3) as loop:
        for change in (
            lambda: None,
            lambda: setattr(loop, "launched", 4),
            lambda: loop.finish(4, time.monotonic()),
        ):
            change()
            places.append(doing.now()[0])
        with doing.doing("saving"):
            places.append(doing.now()[0])
            assert doing.now()[1].what == "saving"
    assert len({*places, doing.now()[0]}) == 5
