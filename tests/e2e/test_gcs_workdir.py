"""A work directory in a bucket, against a real GCS server: cut off and resumed, shared by two processes, refused.

What is there afterwards is judged from a downloaded copy, by Orbax on a local disk."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from fake_gcs.server import Stall

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
INTERRUPTED = "interrupted: ending; a second Ctrl-C ends the process without saving"
DEADLINE_SECONDS = 120


class Command:
    """A training of the line by this server's clients, running from now on."""

    def __init__(self, server, env, out, workdir, flags, program):
        self.out = out
        self.process = server.start([*program, f"--workdir={workdir}", *flags], out, env)

    def end(self, code=0):
        """What it printed. Its exit code must be this one."""
        got = "no exit code, as it did not end; SIGABRT prints its stacks"
        try:
            got, _ = self.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(DEADLINE_SECONDS)
        finally:
            self.process.kill()
        printed = self.out.read_text(errors="replace")
        assert got == code, f"{got}\n{printed}"
        return printed

    def interrupt_twice(self):
        """As Ctrl-C does, while a save stalls. What it printed; it must end with 130."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait_for(INTERRUPTED)
        assert self.process.poll() is None
        self.process.send_signal(signal.SIGINT)
        return self.end(code=130)


@pytest.fixture(scope="module")
def start_command(gcs_server, fork_server, tmp_path_factory):
    """start_command(workdir, flag, ...) -> Command; killed at the end if it still runs."""
    env = {name: each for name, each in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= gcs_server.env
    env |= {"PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}", "JAX_PLATFORMS": "cpu"}
    started = []

    def start(workdir, *flags, program=("-m", "line_worker")):
        out = tmp_path_factory.mktemp("printed") / "printed.txt"
        started.append(Command(fork_server, env, out, workdir, flags, program))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()


@pytest.fixture(scope="module")
def journey(gcs_server, start_command, tmp_path_factory, downloaded):
    """(a local work directory of a straight run, a downloaded one of a run in a bucket that was interrupted twice and
    resumed, what the interrupted one printed, what the resumed one printed)."""
    gcs_server.make_bucket("workdir")
    local = tmp_path_factory.mktemp("local")
    straight = start_command(local)
    # Interrupted while the second checkpoint is not yet whole: the data is there, the word that it is finished is not.
    word = "^P.*checkpoints/40/commit_success"
    gcs_server.fail(word, Stall(), times=None)
    try:
        broken = start_command("gs://workdir/model")
        gcs_server.wait_for(word, DEADLINE_SECONDS)
        interrupted = broken.interrupt_twice()
    finally:
        gcs_server.reset()
    straight.end()
    printed = start_command("gs://workdir/model").end()
    return local, downloaded("gs://workdir/model"), interrupted, printed


def test_a_second_ctrl_c_ends_a_command_at_once_while_a_save_stalls(journey):
    _, _, interrupted, _ = journey
    *_, last = interrupted.splitlines()
    assert last.startswith("interrupted: SIGINT; a second time, so it ends without saving: ")
    assert "Traceback" not in interrupted
    assert "terminate called" not in interrupted


def test_a_run_interrupted_in_a_bucket_resumes_to_the_bits_of_a_straight_local_run(journey, saved):
    local, copy, _, printed = journey
    assert "resuming from the checkpoint of step 20" in printed
    for step in (20, 40):
        (arrays, position), (expected, expected_position) = saved(copy, step), saved(local, step)
        assert len(expected) == 6
        assert arrays.keys() == expected.keys()
        assert [name for name in arrays if arrays[name].tobytes() != expected[name].tobytes()] == []
        assert position == expected_position


def test_every_step_is_in_the_parts_of_the_events_once_and_in_order(journey):
    local, copy, _, _ = journey
    # Three parts: at steps 20 and 40 of the run that was cut off, at step 40 of the resumed one.
    assert len(list((copy / "train").glob("events.*"))) == 3
    assert losses_of(copy) == losses_of(local)


def losses_of(workdir):
    """Those of steps 1 to 40, which must be there in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = EventAccumulator(str(workdir / "train")).Reload().Scalars("loss")
    assert [point.step for point in points] == list(range(1, 41))
    return [point.value for point in points]


def test_two_processes_share_a_work_directory_in_a_bucket_and_begin_with_the_arrays_in_another(
    gcs_server, start_command, free_port, journey, downloaded
):
    gcs_server.make_bucket("two-hosts")
    together = f"--coordinator-address=127.0.0.1:{free_port} --num-processes=2".split()
    # The arrays of a checkpoint of ours are one of Orbax.
    start = "--init-from=gs://workdir/model/checkpoints/40/state --init-rename variables/params/*=*"
    together += ["--host-timeout-seconds=60", *start.split(), "--no-init-strict"]
    commands = [
        start_command("gs://two-hosts/model", *together, f"--process-id={i}") for i in range(2)
    ]
    printed = [command.end() for command in commands]
    assert "step 40/40" in printed[0]
    losses = [losses_of(workdir) for workdir in (downloaded("gs://two-hosts/model"), journey[0])]
    assert losses[0][0] < 0.1 * losses[1][0]
    names = list(gcs_server.objects("two-hosts"))
    for step in (20, 40):
        assert f"model/checkpoints/{step}/commit_success.txt" in names
        assert any(f"{step}/state/ocdbt.process_1/" in name for name in names)
    assert not [name for name in names if ".hosts-" in name]
    assert len([name for name in names if name.startswith("model/train/events.")]) == 2
