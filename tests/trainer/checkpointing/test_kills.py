"""kill -9 while a checkpoint is written in the background: the one before it or the new one restores, and the run goes
on to the same bits.

With SWEEP=1 in the environment all moments are resumed, otherwise five of them."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import jax
import killed_run
import numpy as np
import pytest
from sweep import SWEEP

from pipeline.storage.schemes import open_storage
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.listing import finished_steps
from trainer.loop.train_loop import first_began

ROOT = Path(__file__).parents[3]
FIRST, SECOND, LAST = 10, 20, 30


@pytest.fixture(scope="module")
def start(fork_server, tmp_path_factory):
    """start(workdir, STOP, KILL, EVENT): a process of killed_run with the XLA_FLAGS of this one, so with its bits."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    def started(*arguments):
        command = [killed_run.__file__, *map(str, arguments)]
        return fork_server.start(command, tmp_path_factory.mktemp("printed") / "printed", env)

    return started


def is_stopped(process):
    """Whether all of its threads are, after SIGSTOP. Waits until they are or the process ends."""
    while process.poll() is None:
        with contextlib.suppress(OSError):  # a thread that ended while its file was read
            stats = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/stat")]
            if stats and all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats):
                return True
        time.sleep(0.002)
    return False


@pytest.fixture(scope="module")
def runs(start, tmp_path_factory):
    """(a run that was killed twice, a copy of it for each change of the directory while SECOND was saved).

    A stopped process runs no thread and a killed one none either, and what either wrote is the kernel's: so a copy made
    while it is stopped is what a kill at that moment leaves."""
    workdir, copies = tmp_path_factory.mktemp("killed") / "run", []
    process = start(workdir, SECOND, LAST, 4)
    try:
        while is_stopped(process):
            copies.append(tmp_path_factory.mktemp("copy") / "run")
            shutil.copytree(workdir, copies[-1])
            process.send_signal(signal.SIGCONT)
        assert process.wait()[0] == -signal.SIGKILL
        assert finished_steps(str(workdir)) == [SECOND]
        process = start(workdir, 0, LAST, 9)
        assert process.wait()[0] == -signal.SIGKILL
    finally:
        process.kill()
    return workdir, copies


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return bits(killed_run.train(tmp_path_factory.mktemp("straight")))


def bits(result):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.state)]


def test_a_kill_at_any_of_20_moments_of_a_save_leaves_a_complete_newest_checkpoint(runs):
    _, copies = runs
    assert len(copies) >= 20
    newest = [finished_steps(str(copy))[-1] for copy in copies]
    assert set(newest) == {FIRST, SECOND}
    assert newest == sorted(newest)


def test_a_run_killed_at_selected_moments_of_a_save_resumes_to_the_same_bits(runs, straight):
    _, copies = runs
    newest = [finished_steps(str(copy))[-1] for copy in copies]
    published = newest.index(SECOND)
    some = {0, published // 2, published - 1, published, len(copies) - 1}
    for moment in range(len(copies)) if SWEEP else sorted(some):
        result = killed_run.train(copies[moment])
        assert result.start_step == newest[moment]
        assert bits(result) == straight
        # What was left is removed.
        assert [path.name for path in (copies[moment] / "checkpoints").iterdir()] == [str(LAST)]


def productive_seconds(workdir, step):
    return read_contents(open_storage(str(workdir)), str(workdir / "checkpoints"), step)[
        "productive_seconds"
    ]


@pytest.fixture(scope="module")
def resumed(runs):
    """(the productive seconds before, the result of going on after both kills, the time when that ended)."""
    workdir, _ = runs
    return productive_seconds(workdir, SECOND), killed_run.train(workdir), time.time()


def test_a_run_killed_by_sigkill_in_two_consecutive_saves_resumes_to_the_same_bits(
    resumed, straight
):
    _, result, _ = resumed
    assert result.start_step == SECOND
    assert bits(result) == straight


def test_the_goodput_is_of_all_runs_and_leaves_out_the_steps_that_a_kill_lost(runs, resumed):
    (workdir, _), (before, result, ended) = runs, resumed
    goodput, began = result.goodput, first_began(str(workdir), ended)
    again = (LAST - SECOND) / result.speed.steps_per_second  # the second kill lost these steps once
    assert before > 0
    assert (
        goodput.productive_seconds
        == productive_seconds(workdir, LAST)
        == pytest.approx(before + again)
    )
    assert before + again < goodput.wall_seconds <= ended - began
    assert goodput.share == goodput.productive_seconds / goodput.wall_seconds < 1
