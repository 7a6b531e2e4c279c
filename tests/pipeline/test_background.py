import gc
import subprocess
import sys
import threading
import time

import pytest

from pipeline.background import Background


def infeed_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("infeed")]


def wait_until(true, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    assert true()


def test_items_come_in_order_and_once():
    assert list(Background(range(1000), limit=3)) == list(range(1000))


def test_it_works_ahead_by_no_more_than_its_limit():
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


def test_an_item_over_the_limit_passes_alone():
    seen = []
    waiting = threading.Thread(target=lambda: seen.extend(Background([7, 8], limit=1, cost=lambda _: 100)), daemon=True)
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


def test_dropping_it_ends_its_thread():
    ahead = Background(iter(range(10**9)), limit=2, name="infeed-dropped")
    next(ahead)
    del ahead
    gc.collect()
    wait_until(lambda: "infeed-dropped" not in infeed_threads())


def test_a_process_with_a_stalled_source_exits():
    program = (
        "import threading; from pipeline.background import Background\n"
        "def source():\n yield 0\n threading.Event().wait()\n"
        "ahead = Background(source(), limit=5); print(next(ahead), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
