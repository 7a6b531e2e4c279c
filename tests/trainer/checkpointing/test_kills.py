"""kill -9 while a checkpoint is written in the background: the one before it or the new one restores, and the run goes
on to the same bits."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import killed_run
import numpy as np
import pytest

from trainer.checkpointing.listing import finished_steps

ROOT = Path(__file__).parents[3]
FIRST, SECOND, LAST = 10, 20, 30


def start(compiled, workdir, stop, kill, event):
    command = [sys.executable, killed_run.__file__, *map(str, (workdir, stop, kill, event))]
    env = os.environ | compiled | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, env=env, cwd=ROOT)


@pytest.fixture(scope="module")
def runs(compiled, tmp_path_factory):
    """(a run that was killed twice, a copy of it for each change of the directory while SECOND was saved).

    A stopped process runs no thread and a killed one none either, and what either wrote is the kernel's: so a copy made
    while it is stopped is what a kill at that moment leaves."""
    workdir, copies = tmp_path_factory.mktemp("killed") / "run", []
    process = start(compiled, workdir, SECOND, LAST, 4)
    try:
        while os.WIFSTOPPED(status := os.waitpid(process.pid, os.WUNTRACED)[1]):
            copies.append(tmp_path_factory.mktemp("copy") / "run")
            shutil.copytree(workdir, copies[-1])
            process.send_signal(signal.SIGCONT)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == -signal.SIGKILL
        assert finished_steps(str(workdir)) == [SECOND]
        process = start(compiled, workdir, 0, LAST, 9)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
    return workdir, copies


@pytest.fixture(scope="module")
def straight(compiled, tmp_path_factory):
    return bits(killed_run.train(tmp_path_factory.mktemp("straight")))


def bits(result):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.state)]


def test_killed_at_any_of_20_moments_of_a_save_the_run_goes_on_to_the_same_bits(runs, straight):
    _, copies = runs
    starts = []
    for copy in copies:
        result = killed_run.train(copy)
        assert bits(result) == straight
        assert [path.name for path in (copy / "checkpoints").iterdir()] == [str(LAST)]  # what was left is removed
        starts.append(result.start_step)
    assert len(copies) >= 20
    assert set(starts) == {FIRST, SECOND}
    assert starts == sorted(starts)


def test_killed_for_real_in_two_saves_one_after_the_other_the_run_goes_on_to_the_same_bits(runs, straight):
    workdir, _ = runs
    result = killed_run.train(workdir)
    assert result.start_step == SECOND
    assert bits(result) == straight
