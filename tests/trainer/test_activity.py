"""Which host is stuck: a pure function of what the hosts tell; and what they tell."""

import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import activity
from trainer.activity import Activity, Row, StandingStill, find_stuck, slowest_host
from trainer.config import TrainerConfig

CONFIG = TrainerConfig(workdir="w", global_batch_size=8, host_timeout_seconds=5.0, callback_seconds=60.0)


def row(launched, what="waiting for its devices", waits=True, finished=0, limit=90.0, loops=1, **spent):
    return Row(loops, launched, finished, 0, what, limit, "some_seconds", waits, **spent)


def blamed(*rows, still=None):
    return find_stuck(dict(enumerate(rows)), dict(enumerate(still or [100.0] * len(rows))))


def test_a_host_in_a_callback_is_blamed_before_those_that_wait_for_it():
    found = blamed(row(10), row(10, "in a callback", False, limit=3600.0), row(11))
    assert found == (1, 100.0, 3600.0, "no progress for 100 s; it is in a callback (limit 3600 s: some_seconds)")


def test_of_hosts_that_all_wait_the_one_that_launched_least_is_blamed():
    assert blamed(row(12), row(11), row(12)).host == 1
    assert blamed(row(1, loops=2), row(900, loops=1)).host == 1  # the loop before counts as less


def test_of_hosts_at_work_the_furthest_behind_is_blamed_then_the_one_that_stood_still_for_longest():
    saving = row(10, "saving", False)
    assert blamed(saving, row(9, "saving", False), row(10)).host == 1
    assert blamed(saving, saving, row(10), still=[3.0, 4.0, 100.0]).host == 1


def test_a_host_that_may_work_for_longer_is_what_a_host_in_a_save_waits_for():
    found = blamed(
        row(10, "saving", False, limit=1800.0), row(10, "in a callback", False, limit=3600.0), still=[2000.0, 1999.0]
    )
    assert (found.host, found.limit) == (1, 3600.0)


def test_where_all_launched_alike_the_devices_are_blamed_and_no_host():
    found = blamed(row(20, finished=10), row(20, finished=10), still=[30.0, 20.0])
    assert found.host is None
    assert found.seconds == 20.0
    assert found.text.startswith(
        "no progress for 20 s; every host has launched the steps up to 20, and 10 are finished (limit 90 s: "
    )


def test_a_host_that_may_take_forever_is_never_stuck():
    found = blamed(row(3), row(3, "with the consumer of its predictions", False, limit=math.inf), still=[1e9, 1e9])
    assert found.host == 1
    assert not found.seconds >= found.limit


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.floats(0, 1e4)), min_size=1))
def test_the_host_that_is_blamed_waits_for_no_other(places):
    rows = {host: row(launched, waits=waits, loops=loops) for host, (loops, launched, waits, _) in enumerate(places)}
    found = find_stuck(rows, {host: seconds for host, (*_, seconds) in enumerate(places)})
    working = [host for host, each in rows.items() if not each.waits]
    if found.host is None:
        assert not working
        assert len(rows) > 1
        assert len({each[:2] for each in rows.values()}) == 1
    else:
        assert found.host in (working or rows)
        assert all(rows[found.host][:2] <= rows[host][:2] for host in working or rows)


def test_an_activity_tells_what_is_done_innermost_and_its_limit():
    doing = Activity(CONFIG)
    assert doing.row()[:3] == (0, 0, 0)
    assert doing.row().setting == "compile_seconds"
    with doing.dispatches(7, []) as loop:
        loop.launched = 9
        assert doing.row()[:3] == (1, 9, 7)
        assert (doing.row().limit, doing.row().waits) == (60.0, False)  # at the host's work
        loop.at = loop.INPUT
        assert doing.row().limit == math.inf  # the feeder's is shorter
        with doing.doing("exporting", "export_seconds"):
            assert doing.row()[:3] == (1, 9, 7)
            assert (doing.row().what, doing.row().limit) == ("exporting", 3600.0)
    assert doing.row().what == "between its dispatches"


def test_after_three_dispatches_a_dispatch_may_take_twenty_usual_ones():
    doing = Activity(CONFIG)
    with doing.dispatches(0, []) as loop:
        loop.at = loop.DEVICES
        for number in range(1, 4):
            loop.launched = 10 * number
            loop.finish(10 * number, now=float(number))
            assert doing.row().limit == 1800.0
        loop.finish(40, now=4.0)
        loop.finish(50, now=24.0)  # one is twenty times as slow, which changes nothing
        loop.launched = 50
        assert doing.row().limit == 5.0  # ten steps take a second, one takes a tenth
        loop.launched = 70
        assert doing.row().usual == pytest.approx(2.0)
        assert doing.row().limit == pytest.approx(40.0)
        assert "launched the steps up to 70, and 50 are finished" in doing.row().what


def test_a_host_inside_a_barrier_of_a_library_waits_and_is_not_blamed():
    doing, library = Activity(CONFIG), {}
    exec(
        compile("def barrier(row): return row().waits", "/site-packages/orbax/multihost/multihost.py", "exec"), library
    )
    with doing.doing("saving a checkpoint", "save_seconds"):
        assert not doing.row().waits
        assert library["barrier"](doing.row)


def test_progress_of_any_kind_starts_the_time_anew(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])
    doing, still = Activity(CONFIG), StandingStill(1.0)
    seconds = []
    for _ in range(5):
        clock[0] += 1.0
        seconds.append(still.look({0: doing.row()[:4]})[0])
    assert seconds == [0.0, 1.0, 2.0, 3.0, 4.0]
    with doing.doing("in a callback"):
        clock[0] += 1.0
        assert still.look({0: doing.row()[:4]}) == {0: 0.0}
    clock[0] += 1.0
    assert still.look({0: doing.row()[:4]}) == {0: 0.0}


def test_time_in_which_the_process_was_suspended_does_not_count(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])
    still, told = StandingStill(0.5), {0: row(1)}
    still.look(told)
    clock[0] += 3600.0
    assert still.look(told) == {0: 1.0}


def test_the_slowest_host_is_the_one_that_waits_and_works_most():
    before = {host: row(0, seconds=1.0, input_seconds=0.5, host_seconds=0.0) for host in range(3)}
    after = {
        0: row(9, seconds=11.0, input_seconds=1.5, host_seconds=0.5),
        1: row(9, seconds=11.0, input_seconds=0.5, host_seconds=4.0),
        2: row(9, seconds=11.0, input_seconds=3.5, host_seconds=0.0),
    }
    found = slowest_host(before, after)
    assert found == {"slowest_host": 1, "slowest_share": 0.4, "input_wait_max": 0.3}
    assert slowest_host({}, after) == {}
    assert slowest_host(before, {host: each._replace(loop=2) for host, each in after.items()}) == {}  # another loop
    assert slowest_host(before, before) == {}  # nothing new was told


def test_rows_can_be_read_while_the_main_thread_goes_on():
    doing, ended, failed = Activity(CONFIG), threading.Event(), []

    def read():
        try:
            while not ended.is_set():
                doing.row()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    stop = time.monotonic() + 1.0
    while time.monotonic() < stop:
        with doing.dispatches(0, []) as loop:
            for step in range(1, 50):
                loop.at = loop.DEVICES
                loop.launched = step
                loop.finish(step, time.perf_counter())
                with doing.doing("in a callback", "callback_seconds"):
                    pass
    ended.set()
    thread.join()
    assert not failed
