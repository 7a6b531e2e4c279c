"""A training, its evaluation and its predictions with --input-workers have the same bits; a lost worker costs none."""

import json
import os
import pickle
import re
import shutil
import signal
import time
from dataclasses import replace

import psutil
import pytest
from sweep import SWEEP

from pipeline.inputs import dataset_input
from trainer.checkpoints import get_variable_names, get_variable_value
from trainer.commands.running import run
from trainer.config import TrainerConfig
from trainer.recipes.images import Config

PROGRAM = """
import pickle, sys
from trainer.commands.running import run
run(pickle.loads(bytes.fromhex(sys.argv[1])))
"""
FAULTS = {"SIGKILL": "was ended by signal 9"}
FAULTS |= {"SIGSTOP": "waited 5 s for worker"} if SWEEP else {}


def config_of(digits, workdir, workers):
    settings = TrainerConfig(
        workdir=str(workdir), global_batch_size=16, eval_batch_size=100, max_steps=6, iterations_per_loop=2,
        checkpoint_every_steps=2, keep_max=9, input_workers=workers, read_ahead_bytes=1,
    )  # fmt: skip
    narrow = {"size": 16, "widths": (4, 8), "augmentation": "trivial"}
    return Config(data_dir=str(digits[1]), trainer=settings, **narrow)


@pytest.fixture
def taken_over(monkeypatch):
    """The number of workers each time that they take over, which they do after the first two batches."""
    numbers = []
    monkeypatch.setattr(dataset_input, "choose_workers", lambda *_: numbers.append(2) or 2)
    return numbers


def model(workdir, step):
    names = get_variable_names(str(workdir), step=step, all_arrays=True)
    return {
        name: get_variable_value(str(workdir), name, step=step, all_arrays=True).tobytes()
        for name in names
    }


def without_times(path):
    times = ("time", "seconds", "per_second", "wait", "goodput", "workdir")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not any(each in name for each in times)}
        for line in lines
    ]


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory):
    """The work directory of a run, evaluated and predicted with, whose batches one process made."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    for mode in ("train", "predict"):
        run(replace(config_of(digits, workdir, 0), mode=mode))
    return workdir


def assert_same(workdir, alone):
    assert model(workdir, 6) == model(alone, 6)
    for name in ("train/metrics.jsonl", "eval/metrics.jsonl"):
        assert without_times(workdir / name)[-1] == without_times(alone / name)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [*[3] * SWEEP, "auto"])
def test_training_evaluation_and_predictions_do_not_depend_on_workers(
    digits, alone, workers, taken_over, tmp_path
):
    for mode in ("train", "predict"):
        run(replace(config_of(digits, tmp_path, workers), mode=mode))
    assert_same(tmp_path, alone)
    assert bool(taken_over) == (workers == "auto")
    made, expected = (workdir / "predictions.jsonl" for workdir in (tmp_path, alone))
    assert made.read_bytes() == expected.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [*[2] * SWEEP, "auto"])
def test_a_run_that_began_without_workers_goes_on_with_them_to_the_same_bits(
    digits, alone, workers, taken_over, tmp_path
):
    shutil.copytree(alone, tmp_path / "run")
    config = config_of(digits, tmp_path / "run", workers)
    run(replace(config, trainer=replace(config.trainer, restore_step=2)))
    assert_same(tmp_path / "run", alone)
    assert bool(taken_over) == (workers == "auto")


def workers_of(process):
    """The worker processes of a process, in the order of their start."""
    children = psutil.Process(process.pid).children()
    return [each.pid for each in children if "pipeline.inputs.worker" in " ".join(each.cmdline())]


def end_within(seconds, pids):
    """Whether these processes end in that time."""
    stop = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < stop:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))


@pytest.fixture
def started(digits, fork_server, tmp_path):
    """(a process that trains with two workers for long, the pids of its workers)."""
    command = f"-m trainer images --data-dir={digits[1]} --workdir={tmp_path}/run --size=16"
    command += " --widths 4 8 --augmentation=trivial --global-batch-size=16 --input-workers=2"
    command += " --max-steps=6000000 --checkpoint-every-steps=200 --iterations-per-loop=2"
    process = fork_server.start([*command.split(), "--stall-seconds=5"], tmp_path / "printed")
    begun = tmp_path / "run/train/metrics.jsonl"
    while not (workers := workers_of(process)) or not begun.exists():
        assert process.poll() is None, process.printed
        time.sleep(0.05)
    yield process, workers
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_whose_worker_is_lost_ends_with_its_name(fault, started):
    process, workers = started
    os.kill(workers[1], signal.Signals[fault])
    assert process.wait(60)[0] == 2, process.printed
    assert FAULTS[fault] in process.printed
    assert end_within(10, workers)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"] if SWEEP else ["evaluate"])
def test_the_command_of_a_run_that_lost_a_worker_ends_with_the_same_bits(
    mode, digits, fork_server, tmp_path
):
    def start(config):
        return fork_server.start(["-c", PROGRAM, pickle.dumps(config).hex()], tmp_path / "printed")

    def run_apart(config):  # it compiles otherwise than this process, so its last bits may differ
        assert (process := start(config)).wait(90)[0] == 0, process.printed

    for each in ("train", "predict"):
        run_apart(replace(config_of(digits, tmp_path / "apart", 0), mode=each))
    workdir = tmp_path / "run"
    if mode != "train":
        shutil.copytree(tmp_path / "apart", workdir)
        (workdir / "predictions.jsonl").unlink()
    config = config_of(digits, workdir, 2)
    config = replace(config, mode=mode, trainer=replace(config.trainer, stall_seconds=5))
    process = start(config)
    while not (workers := workers_of(process)) and process.poll() is None:
        time.sleep(0.01)
    os.kill(workers[0], signal.SIGKILL)
    if process.wait(90)[0]:
        assert re.search(r"worker \d of 2 \(process", process.printed), process.printed
    assert end_within(10, workers)
    run_apart(config)
    assert_same(workdir, tmp_path / "apart")
    if mode == "predict":
        made, expected = (each / "predictions.jsonl" for each in (workdir, tmp_path / "apart"))
        assert made.read_bytes() == expected.read_bytes()


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", 75), ("SIGINT", 130), ("SIGKILL", -9)])
def test_signals_to_a_training_end_its_workers_with_it(sent, code, started):
    process, workers = started
    process.send_signal(signal.Signals[sent])
    assert process.wait(60)[0] == code, process.printed
    assert end_within(10, workers)
