"""A work directory in a bucket: trained, killed, resumed and evaluated by the command line against a real GCS server.

What is there afterwards is judged from a downloaded copy, by Orbax on a local disk."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from fake_gcs.server import Stall, Status

pytestmark = pytest.mark.long

ROOT = str(Path(__file__).parents[2])
DEADLINE_SECONDS = 120
FLAGS = ["--iterations-per-loop=5", "--checkpoint-every-steps=20", "--max-steps=40", "--keep-max=2"]


class Command:
    """`python -m trainer digits` of this server's clients, running from now on."""

    def __init__(self, gcs_server, out, data_dir, workdir, *flags):
        self.out = out
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        env = clean | gcs_server.env | {"PYTHONPATH": ROOT, "JAX_PLATFORMS": "cpu"}
        arguments = [f"--data-dir={data_dir}", f"--workdir={workdir}", *FLAGS, *flags]
        command = [sys.executable, "-m", "trainer", "digits", *arguments]
        with out.open("wb") as file:
            self.process = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)

    def end(self, code=0):
        """What it printed. Its exit code must be this one."""
        try:
            got = self.process.wait(DEADLINE_SECONDS)
        finally:
            self.process.kill()
        printed = self.out.read_text(errors="replace")
        assert got == code, printed
        return printed

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(10) == -signal.SIGKILL


@pytest.fixture(scope="module")
def start_command(gcs_server, digits, tmp_path_factory):
    """start_command(workdir, flag, ...) -> Command; killed at the end if it still runs."""
    started = []

    def start(workdir, *flags):
        out = tmp_path_factory.mktemp("printed") / "printed.txt"
        started.append(Command(gcs_server, out, digits[1], workdir, *flags))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()
        command.process.wait()


@pytest.fixture(scope="module")
def journey(gcs_server, start_command, tmp_path_factory):
    """(a local work directory of a straight run, a downloaded one of a run in a bucket that was killed and resumed)."""
    gcs_server.make_bucket("journey")
    local, copy = tmp_path_factory.mktemp("local"), tmp_path_factory.mktemp("copy")
    straight = start_command(local)
    # Killed while the second checkpoint is not yet whole: the data is there, the word that it is finished is not.
    word = "^P.*checkpoints/40/commit_success"
    gcs_server.fail(word, Stall(), times=None)
    try:
        broken = start_command("gs://journey/model")
        gcs_server.wait_for(word, DEADLINE_SECONDS)
        broken.kill()
    finally:
        gcs_server.reset()
    straight.end()
    printed = start_command("gs://journey/model").end()
    download(gcs_server, "journey", "model/", copy)
    return local, copy, printed


def download(gcs_server, bucket, prefix, directory):
    for name in gcs_server.objects(bucket, prefix):
        if not name.endswith("/"):  # TensorFlow's stand-in for an empty directory
            path = directory / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gcs_server.read(bucket, name))


def saved(workdir, step):
    """(every array of a checkpoint by name, the input's state)."""
    items = {"state": ocp.args.StandardRestore(), "input": ocp.args.JsonRestore()}
    with ocp.CheckpointManager(workdir / "checkpoints") as manager:
        found = manager.restore(step, args=ocp.args.Composite(**items))
    arrays = jax.tree_util.tree_leaves_with_path(found["state"])
    return {jax.tree_util.keystr(path): np.asarray(array) for path, array in arrays}, found["input"]


def result(workdir):
    report = json.loads((workdir / "eval_result.json").read_text())
    return {key: value for key, value in report.items() if key != "seconds"}


def test_killed_and_resumed_in_a_bucket_ends_with_the_bits_of_a_straight_local_run(journey):
    local, copy, printed = journey
    assert "going on from the checkpoint of step 20" in printed
    for step in (20, 40):
        (arrays, position), (expected, expected_position) = saved(copy, step), saved(local, step)
        assert len(expected) > 10
        assert arrays.keys() == expected.keys()
        assert [name for name in arrays if arrays[name].tobytes() != expected[name].tobytes()] == []
        assert position == expected_position
    assert result(copy) == result(local)
    assert result(copy)["proven"]


def test_a_checkpoint_in_a_bucket_is_evaluated_by_a_later_command(journey, start_command, gcs_server):
    local, _, _ = journey
    before = set(gcs_server.objects("journey", "model/eval/"))
    printed = start_command("gs://journey/model", "--mode=evaluate").end()
    assert "proven exact; written to gs://journey/model/eval_result.json" in printed
    report = json.loads(gcs_server.read("journey", "model/eval_result.json"))
    assert {key: report[key] for key in result(local)} == result(local)
    assert len(set(gcs_server.objects("journey", "model/eval/")) - before) == 1


def test_every_step_is_in_the_parts_of_the_events_once_and_in_order(journey):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    local, copy, _ = journey
    # Three parts: at steps 20 and 40 of the run that was killed, at step 40 of the resumed one.
    assert len(list((copy / "train").iterdir())) == 3
    points = [EventAccumulator(str(workdir / "train")).Reload().Scalars("loss") for workdir in (copy, local)]
    steps_and_values = [[(point.step, point.value) for point in run] for run in points]
    assert [step for step, _ in steps_and_values[0]] == list(range(1, 41))
    assert steps_and_values[0] == steps_and_values[1]


def test_two_processes_share_a_work_directory_in_a_bucket(gcs_server, start_command):
    gcs_server.make_bucket("two-hosts")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    together = [f"--coordinator-address={address}", "--num-processes=2", "--host-timeout-seconds=60"]
    commands = [start_command("gs://two-hosts/model", *together, f"--process-id={i}") for i in range(2)]
    printed = [command.end() for command in commands]
    assert "proven exact" in printed[0]
    names = list(gcs_server.objects("two-hosts"))
    for step in (20, 40):
        assert f"model/checkpoints/{step}/commit_success.txt" in names
        assert any(f"{step}/state/ocdbt.process_1/" in name for name in names)
    assert not [name for name in names if ".hosts-" in name]
    assert len([name for name in names if name.startswith("model/train/")]) == 2


REFUSED = {  # bucket -> what the server does to it, the command's last line
    "missing": (None, "error: cannot list gs://missing/m/checkpoints: bucket 'missing' does not exist (404)."),
    "closed": (
        "^POST.*/b/closed/",
        "error: cannot write to workdir=gs://closed/m: cannot create gs://closed/m/.hosts-",
    ),
    "full": ("^POST.*/b/full/.*checkpoints/20", "error: cannot create gs://full/m/checkpoints/20/: permission denied"),
}


@pytest.fixture(scope="module")
def refused(gcs_server, start_command):
    """bucket -> (what the command printed, after how many seconds)."""
    for bucket, (fault, _) in REFUSED.items():
        if fault:
            gcs_server.make_bucket(bucket)
            gcs_server.fail(fault, Status(403), times=None)
    begun = time.monotonic()
    commands = {bucket: start_command(f"gs://{bucket}/m") for bucket in REFUSED}
    try:
        return {bucket: (command.end(code=2), time.monotonic() - begun) for bucket, command in commands.items()}
    finally:
        gcs_server.reset()


@pytest.mark.parametrize("bucket", REFUSED)
def test_a_bucket_that_is_missing_or_closed_is_one_line_within_seconds(refused, bucket):
    (fault, text), (printed, seconds) = REFUSED[bucket], refused[bucket]
    *_, last = printed.splitlines()
    assert last.startswith(text)
    assert fault is None or "403" in last
    assert "Traceback" not in printed
    assert seconds < 60
