"""A DatasetInput over a disk that stalls ends in one error, with one dump of all stacks, and leaves nothing behind."""

import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.background import stacks, thread_frames
from pipeline.datasets import DatasetInput, eval_dataset, train_dataset
from pipeline.errors import OptionError, StallError
from pipeline.tf_cpu import tf
from pipeline.tf_data import dataset_of

STALL_SECONDS, SOON = 0.5, 20.0  # the bound under test; what a slow machine may take beside it
RECIPES = [(train_dataset, "train-00002-of-00003"), (eval_dataset, "validation-00001-of-00002")]
recipes = pytest.mark.parametrize(("recipe", "shard"), RECIPES, ids=["train", "eval"])


@pytest.fixture
def stalling(images, tmp_path) -> Iterator[Callable[..., DatasetInput]]:
    """An input whose shard, after opening, is a pipe that blocks whoever opens it to read."""
    timers = []

    def open_and_stall(recipe, shard: str, stall_seconds: float = STALL_SECONDS) -> DatasetInput:
        directory = shutil.copytree(images, tmp_path / "stalled")
        # keys=(): a bound so short has no room for decoding on a busy machine.
        source = recipe(
            str(directory), global_batch=4, keys=(), read_ahead_bytes=1, stall_seconds=stall_seconds
        )
        (directory / shard).unlink()
        os.mkfifo(directory / shard)
        # a broken bound must not hang the tests
        timers.append(threading.Timer(2 * SOON, end_stall, (tmp_path, shard)))
        timers[0].start()
        return source

    yield open_and_stall
    timers[0].cancel()


def end_stall(tmp_path: Path, shard: str) -> None:
    """An error unless a thread is inside of the pipe."""
    os.close(os.open(tmp_path / "stalled" / shard, os.O_WRONLY | os.O_NONBLOCK))


def infeed_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if name.startswith("infeed-"))


def wait_for_threads(names: list[str]) -> None:
    end = time.monotonic() + SOON
    while infeed_threads() != names:
        assert time.monotonic() < end, infeed_threads()
        time.sleep(0.01)


def reading_stack(text: str) -> str:
    return text.partition("Thread infeed-read:\n")[2].partition("\nThread ")[0]


def wait_until_inside() -> None:
    """Until the reading thread opens a file and does not get on with it."""
    end, stuck = time.monotonic() + SOON, 0
    while stuck < 10:
        assert time.monotonic() < end
        stuck = stuck + 1 if reading_stack(stacks()).endswith("in LocalStorage.read_ranges") else 0
        time.sleep(0.01)


def dumps(caplog: pytest.LogCaptureFixture) -> list[str]:
    # TensorFlow has its own
    return [record.getMessage() for record in caplog.records if record.name == "pipeline"]


def assert_ends_in_one_stall(batches: Iterator, caplog: pytest.LogCaptureFixture) -> StallError:
    begin = time.monotonic()
    with pytest.raises(StallError) as caught:
        list(batches)
    assert time.monotonic() - begin < SOON
    [dump] = dumps(caplog)
    assert dump.startswith(f"{caught.value}\nThread ")
    assert next(batches, "the end") == "the end"
    return caught.value


@pytest.mark.parametrize("recipe", [train_dataset, eval_dataset])
@pytest.mark.parametrize("seconds", [0, -1.5, float("nan")])
def test_an_invalid_stall_timeout_is_refused(images, recipe, seconds):
    with pytest.raises(OptionError, match=rf"stall_seconds={seconds} must be above 0"):
        recipe(images, global_batch=4, stall_seconds=seconds)


@recipes
def test_batches_over_a_stalled_disk_end_in_one_error_and_only_the_thread_inside_it_is_left(
    stalling, tmp_path, caplog, recipe, shard
):
    batches = stalling(recipe, shard).batches()
    assert_ends_in_one_stall(batches, caplog)
    assert reading_stack(dumps(caplog)[0]).endswith("in LocalStorage.read_ranges")
    begin = time.monotonic()
    batches.close()
    assert time.monotonic() - begin < 0.5
    wait_for_threads(["infeed-read"])
    end_stall(tmp_path, shard)
    wait_for_threads([])
    assert len(dumps(caplog)) == 1


def test_a_stall_counts_from_the_call_that_waits(stalling, tmp_path, caplog):
    _, shard = RECIPES[1]
    batches = stalling(eval_dataset, shard).batches()
    next(batches)
    wait_until_inside()
    time.sleep(2 * STALL_SECONDS)  # a training step, say
    next(batches)  # two batches lie before the stall
    assert not dumps(caplog)
    begin = time.monotonic()
    assert_ends_in_one_stall(batches, caplog)
    assert time.monotonic() - begin >= STALL_SECONDS
    end_stall(tmp_path, shard)
    wait_for_threads([])


@recipes
def test_a_tf_dataset_over_a_stalled_disk_ends_in_one_error_too(
    stalling, tmp_path, caplog, recipe, shard
):
    dataset = dataset_of(stalling(recipe, shard))
    begin = time.monotonic()
    with pytest.raises(
        tf.errors.OpError, match=r"StallError: waited 0\.5 s for input from thread 'infeed-decode'"
    ):
        list(dataset)
    assert time.monotonic() - begin < SOON
    assert len(dumps(caplog)) == 1
    wait_for_threads(["infeed-read"])
    end_stall(tmp_path, shard)
    wait_for_threads([])


UNCAUGHT = """
import os, sys
from pipeline.datasets import eval_dataset
from pipeline.tf_data import dataset_of
patient, source = [
    eval_dataset(sys.argv[1], global_batch=4, keys=(), read_ahead_bytes=1, stall_seconds=seconds)
    for seconds in (60.0, 3.0)
]
os.setsid()
os.unlink(sys.argv[2]); os.mkfifo(sys.argv[2])
kept = [patient.batches(), iter(dataset_of(patient))]
print([next(batches)["_index"].shape for batches in kept], flush=True)
for batch in source.batches():
    print(batch["_index"].shape, flush=True)
"""


@pytest.mark.slow
def test_a_process_with_a_stalled_disk_reports_the_stall_and_exits_without_children(
    images, tmp_path, fork_server
):
    # It also holds, to its end, batches and an iterator of a tf.data dataset over the same disk.
    directory = shutil.copytree(images, tmp_path / "stalled")
    process = fork_server.start(
        ["-c", UNCAUGHT, str(directory), str(directory / RECIPES[1][1])], tmp_path / "printed"
    )
    try:
        code, _ = process.wait(60)
    finally:
        process.kill()
    printed = process.printed
    assert code == 1, printed
    assert "[(4,), TensorShape([4])]" in printed
    assert "Thread infeed-read:\n" in printed  # nothing configured the log
    assert printed.splitlines()[-1].startswith(
        "pipeline.errors.StallError: waited 3 s for input from"
    )
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_no_garbage_is_collected_while_the_interpreter_lists_frames():
    """In CPython 3.11 that may deadlock."""
    callers = []

    def note(phase, info):
        callers.append(sys._getframe(1).f_code.co_name)

    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        for _ in range(50):
            assert threading.get_ident() in thread_frames()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert callers
    assert "thread_frames" not in callers
