"""Programs of tf.data and Grain through the command: the same bits after a kill, exact evaluations, faults and Ctrl-C.

SWEEP=1 has more programs, and kills each at ten moments."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import brought_programs
import numpy as np
import psutil
import pytest
from brought_programs import FAULTY, PROGRAMS, RECORDS, STEPS, X, Y
from sweep import SWEEP

from pipeline.storage.local import LocalStorage
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.listing import checkpoints_directory
from trainer.checkpoints import get_variable_value

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHOSEN = PROGRAMS if SWEEP else ("tf.data", "Grain, workers")


@pytest.fixture(scope="module")
def start(fork_server, tmp_path_factory):
    """start(program, workdir, *options, pause=0) -> the process of a command."""
    started = []

    def run(program, workdir, *options, pause=0.0):
        path = f"{ROOT}:{Path(brought_programs.__file__).parent}"
        env = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "PAUSE": str(pause)}
        command = ["-m", "trainer", "brought_programs:Config", f"--program={program}"]
        out = tmp_path_factory.mktemp("out") / "printed"
        process = fork_server.start([*command, f"--workdir={workdir}", *options], out, env)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def straight(start, tmp_path_factory):
    """straight(program) -> the work directory of a training that nothing disturbed."""
    trained = {}

    def run(program):
        if program not in trained:
            workdir = tmp_path_factory.mktemp("straight") / "run"
            process = start(program, workdir)
            assert process.wait()[0] == 0, process.printed
            trained[program] = workdir
        return trained[program]

    return run


def arrays_of(workdir):
    return read_contents(LocalStorage(), checkpoints_directory(str(workdir)), STEPS)["arrays"]


def wait_for(there, process):
    stop = time.monotonic() + 90
    while not there():
        assert time.monotonic() < stop, process.printed
        assert process.poll() is None, process.printed
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(10 if SWEEP else 1))
@pytest.mark.parametrize("program", CHOSEN)
def test_a_run_that_is_killed_at_any_moment_resumes_to_the_same_bits(
    start, straight, tmp_path, program, seed
):
    process = start(program, tmp_path / "run", pause=0.1)  # so the rest takes 2 s
    moment = random.Random(f"{program} {seed}").uniform(0, 1.2)
    first = tmp_path / "run" / "checkpoints" / str(brought_programs.EVERY)
    wait_for(first.exists, process)
    time.sleep(moment)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for child in children:  # Grain's workers survive it
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    again = start(program, tmp_path / "run")
    assert again.wait()[0] == 0, again.printed
    assert arrays_of(tmp_path / "run") == arrays_of(straight(program))


@pytest.mark.parametrize("program", CHOSEN)
def test_an_evaluation_with_a_remainder_is_that_of_numpy_over_every_record(
    start, straight, program
):
    workdir = straight(program)
    result = json.loads((workdir / "eval_result.json").read_text())
    assert result["records"] == result["num_records"] == RECORDS
    weights = get_variable_value(str(workdir), "params/w")
    expected = np.mean((np.tanh(X @ weights) - Y) ** 2, axis=-1).mean(dtype=np.float64)
    assert result["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("program", FAULTY if SWEEP else ("an error in a worker", "NaN"))
def test_a_fault_is_one_error_that_names_the_step(start, tmp_path, program):
    process = start(program, tmp_path / "run")
    assert process.wait()[0] in (1, 2), process.printed
    step = 41 // brought_programs.BATCH + 1
    assert f"step {step}" in process.printed
    assert ("record 41 is broken" in process.printed) == (program != "NaN")


def test_ctrl_c_ends_grains_workers_with_the_run(start, tmp_path):
    process = start("Grain, workers", tmp_path / "run", pause=0.05)
    first = tmp_path / "run" / "checkpoints" / str(brought_programs.EVERY)
    wait_for(first.exists, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait()[0] == 130, process.printed
    assert time.monotonic() - began < 20
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    again = start("Grain, workers", tmp_path / "run")
    assert again.wait()[0] == 0, again.printed
