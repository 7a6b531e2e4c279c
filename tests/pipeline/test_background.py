import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.background import Background
from pipeline.errors import InfeedError, OptionError, StallError

STALL_SECONDS, SOON = 0.5, 20.0  # the bound under test; what a slow machine may take beside it


def infeed_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("infeed")]


def wait_until(true, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    assert true()


def test_items_come_in_order_and_once():
    assert list(Background(range(1000), limit=3)) == list(range(1000))


def test_the_background_thread_works_ahead_no_more_than_its_limit():
    made = []

    def source():
        for i in range(100):
            made.append(i)
            yield i

    ahead = Background(source(), limit=10, cost=lambda _: 4)
    wait_until(lambda: len(made) == 3)  # two fit, a third is in its hand
    time.sleep(0.05)
    assert len(made) == 3
    assert next(ahead) == 0
    wait_until(lambda: len(made) == 4)
    ahead.close()


def test_an_item_larger_than_the_limit_is_delivered():
    seen = []
    waiting = threading.Thread(
        target=lambda: seen.extend(Background([7, 8], limit=1, cost=lambda _: 100)), daemon=True
    )
    waiting.start()
    waiting.join(5)
    assert seen == [7, 8]


def test_an_exception_comes_after_the_items_before_it_with_type_and_text():
    def source():
        yield 1
        raise KeyError("the third shelf")

    ahead = Background(source(), limit=5)
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="the third shelf"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)


def test_closing_does_not_wait_for_a_stalled_source_and_leaves_no_thread_behind():
    stall, left = threading.Event(), threading.Event()

    def source():
        try:
            yield 0
            stall.wait(30)
            yield 1
        finally:
            left.set()

    ahead = Background(source(), limit=5)
    next(ahead)
    waiting = threading.Thread(target=lambda: list(ahead))
    waiting.start()
    begin = time.monotonic()
    ahead.close()
    waiting.join(5)  # whoever waits in `next` is let go, too
    assert not waiting.is_alive()
    assert time.monotonic() - begin < 1
    stall.set()
    assert ahead.join(5)
    assert left.is_set()


def test_an_exception_of_the_check_ends_the_wait_without_losing_items():
    source, asked = Stall(1), []

    def check():
        asked.append(time.monotonic())
        if len(asked) == 2:
            raise KeyError("look up")
        return False

    ahead = Background(source, limit=5, stall_seconds=SOON, check=check)
    assert (next(ahead), asked) == (1, [])  # not before it waits
    begin = time.monotonic()
    with pytest.raises(KeyError, match="look up"):
        next(ahead)
    assert time.monotonic() - begin < SOON / 2
    source.let_go.set()
    assert next(ahead) == -1


def test_a_sign_of_life_restarts_the_stall_timer():
    source, life = Stall(1), iter([True] * 5)
    ahead = Background(
        source, limit=5, stall_seconds=STALL_SECONDS, check=lambda: next(life, False)
    )
    next(ahead)
    begin = time.monotonic()
    with pytest.raises(StallError):
        next(ahead)
    # five checks of 0.2 s, and the bound
    assert 1.0 + STALL_SECONDS <= time.monotonic() - begin < SOON
    source.let_go.set()
    assert ahead.join(SOON)  # other tests of this process count threads


def test_dropping_the_iterator_ends_its_thread():
    ahead = Background(iter(range(10**9)), limit=2, name="infeed-dropped")
    next(ahead)
    del ahead
    gc.collect()
    wait_until(lambda: "infeed-dropped" not in infeed_threads())


class Stall:
    """An iterable that gives some items and then waits to be let go."""

    def __init__(self, *items: int) -> None:
        self.items, self.let_go = items, threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield from self.items
        self.let_go.wait(2 * SOON)
        yield -1


def test_a_wait_that_is_too_long_is_one_error_and_one_dump_of_all_threads_by_name(caplog):
    source, bystander = Stall(1, 2), Stall()
    other = threading.Thread(target=lambda: list(bystander), name="a bystander")
    other.start()
    ahead = Background(source, limit=5, name="the-source", stall_seconds=STALL_SECONDS)
    assert [next(ahead), next(ahead)] == [1, 2]
    begin = time.monotonic()
    with pytest.raises(StallError) as caught:
        next(ahead)
    assert STALL_SECONDS <= time.monotonic() - begin < SOON
    assert list(ahead) == []
    assert str(caught.value) == (
        "waited 0.5 s for input from thread 'the-source', and nothing came. The log has the stack of every "
        "thread (reading is in 'infeed-read') and shows where it hangs. Check the storage; if it is only slow, pass a "
        "larger stall_seconds."
    )
    assert isinstance(caught.value, InfeedError)
    assert isinstance(caught.value, TimeoutError)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("pipeline", logging.ERROR)
    dump = record.getMessage()
    assert dump.startswith(f"{caught.value}\nThread ")
    for thread in ("the-source", "a bystander"):
        stack = dump.partition(f"Thread {thread}:\n")[2].partition("\nThread ")[0]
        assert stack.index(
            f'test_background.py", line {Stall.__iter__.__code__.co_firstlineno + 2}, in Stall.__iter__'
        ) < (
            stack.index("in Event.wait")  # the latest call last
        )
    assert "Thread MainThread:\n" in dump
    begin = time.monotonic()
    ahead.close()
    assert time.monotonic() - begin < 0.5
    for stall in (source, bystander):
        stall.let_go.set()
    assert ahead.join(SOON)
    other.join()


@pytest.mark.slow
def test_the_stall_timer_restarts_with_each_item_of_a_slow_source(caplog):
    def source():
        for i in range(6):
            time.sleep(0.2)
            yield i

    assert list(Background(source(), limit=5, stall_seconds=1.0)) == [0, 1, 2, 3, 4, 5]
    assert not caplog.records


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan")])
def test_an_invalid_stall_timeout_is_refused(seconds):
    with pytest.raises(OptionError, match="stall_seconds"):
        Background([1], limit=1, stall_seconds=seconds)
    assert list(Background([1, 2], limit=1, stall_seconds=float("inf"))) == [1, 2]


def test_a_process_waits_at_its_end_for_the_thread_of_a_background_that_was_dropped():
    """Inside a library in C++, the thread would abort the process."""
    program = """
import time
from pipeline.background import Background

def source():
    try:
        yield 1
        time.sleep(0.5)
        yield 2
    finally:
        print("ended", flush=True)

assert next(Background(source(), limit=1)) == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ended\n"
