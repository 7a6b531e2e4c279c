"""A work directory on s3://, against a real server: killed in the middle of saves, resumed, shared by two processes.

A reader judges what each kill leaves: every checkpoint that it lists has the values that were saved."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_s3.server import Reset, Short, Stall, Status
from sweep import SWEEP

from pipeline.storage.schemes import open_storage
from trainer.checkpointing.contents import check_tree, read_array, read_contents
from trainer.checkpointing.listing import checkpoints_directory, finished_steps, kinds

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DEADLINE_SECONDS = 120
KILLS = 20 if SWEEP else 10
FAULTS = [Status(503), Status(429), Status(500, when="after")]
FAULTS += [Reset(), Reset(when="after"), Short()]
PROGRAM = """
import runpy
from trainer.checkpointing import tensorstore_specs
tensorstore_specs.RETRIES |= {"initial_delay": "10ms", "max_delay": "100ms"}
runpy.run_module("line_worker", run_name="__main__")
"""
STEPS, EVERY = 400, 20
SAVES_A_PART = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.config import TrainerConfig
from trainer.task import TrainState, Variables
workdir, port, index, count = sys.argv[1].removeprefix("--workdir="), *sys.argv[2:]
if count != "1":
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(index))
mesh = Mesh(np.array(jax.devices()), ("model",))
w = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)
def put(numbers, *split):
    return jax.make_array_from_callback(numbers.shape, NamedSharding(mesh, P(*split)), lambda at: numbers[at])
state = TrainState(put(np.int32(1)), Variables({"w": put(w, "model")}), (), put(np.zeros(2, np.uint32)))
with CheckpointManager(TrainerConfig(workdir=workdir, global_batch_size=1)) as checkpoints:
    if count != "1":
        checkpoints.save(Saved(1, state, {}, {}))
        checkpoints.settle(wait=True)
    restored = checkpoints.restore(1, state).state.variables.params["w"]
for part in restored.addressable_shards:
    np.testing.assert_array_equal(part.data, w[part.index])
"""


@pytest.fixture
def start_run(s3_server, fork_server, tmp_path):
    """start_run(workdir, flag, ...): a training run of the line; killed at the end if it still runs."""
    env = {name: each for name, each in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= s3_server.env
    env |= {"PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}", "JAX_PLATFORMS": "cpu"}
    started = []

    def start(workdir, *flags, program=PROGRAM, **more):
        command = ["-c", program, f"--workdir={workdir}", *flags]
        started.append(fork_server.start(command, tmp_path / f"printed-{len(started)}", env | more))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def finish(process, code=0):
    """What it printed. Its exit code must be this one."""
    got, _ = process.wait(DEADLINE_SECONDS)
    assert got == code, f"{got}\n{process.printed}"
    return process.printed


def kill_at(server, process, pattern, skip=0):
    """Kills the process while the server holds its request number `skip` that matches. False if it ended before.

    The request has no effect until the server is reset."""
    server.fail(pattern, Stall(), skip=skip)
    stop = time.monotonic() + DEADLINE_SECONDS
    while len(server.requests(pattern)) <= skip and process.poll() is None:
        assert time.monotonic() < stop
        time.sleep(0.005)
    killed = process.poll() is None
    process.kill()
    process.wait(DEADLINE_SECONDS)
    return killed


def arrays(workdir):
    """Step -> the values of each array of every finished checkpoint, as a reader finds them."""
    storage, directory = open_storage(workdir), checkpoints_directory(workdir)
    found = {}
    for step in finished_steps(workdir):
        listed = read_contents(storage, directory, step)["arrays"]
        check_tree(storage, f"{directory}/{step}/state", listed)
        found[step] = {
            name: read_array(f"{directory}/{step}", name, listed[name]).tobytes() for name in listed
        }
    return found


def test_a_run_killed_in_the_middle_of_a_save_resumes_to_the_bits_of_a_run_on_a_disk(
    s3_bucket, s3_server, start_run, tmp_path
):
    straight, workdir = start_run(tmp_path / "run"), f"{s3_bucket}/run"
    # The arrays are there, the words that they and the checkpoint are finished are not.
    assert kill_at(s3_server, start_run(workdir), "^PUT .*checkpoints/40/state/commit_success")
    assert kinds(workdir) == {"20": "finished", "40": "unfinished"}
    s3_server.reset()
    assert "resuming from the checkpoint of step 20" in finish(start_run(workdir))
    finish(straight)
    assert arrays(workdir) == arrays(str(tmp_path / "run"))
    assert arrays(workdir).keys() == {20, 40}


def test_kills_at_any_change_leave_only_checkpoints_with_the_values_of_a_straight_run(
    s3_bucket, s3_server, start_run, tmp_path
):
    workdir, rng = f"{s3_bucket}/run", random.Random(0)
    flags = (f"--max-steps={STEPS}", f"--checkpoint-every-steps={EVERY}")
    straight = start_run(tmp_path / "run", *flags, "--keep-max=100")
    finish(straight)
    expected = arrays(str(tmp_path / "run"))
    killed, unfinished = 0, 0
    while killed < KILLS:
        run = start_run(workdir, *flags)
        changes = "^(PUT|DELETE) .*checkpoints/"
        assert kill_at(s3_server, run, changes, rng.randrange(100)), f"{killed} kills"
        killed += 1
        unfinished += "unfinished" in kinds(workdir).values()
        for request_arrives in (False, True):
            if request_arrives:
                s3_server.reset()
            found = arrays(workdir)
            assert found == {step: expected[step] for step in found}
    assert unfinished >= 3
    finish(start_run(workdir, *flags))
    found = arrays(workdir)
    assert found == {step: expected[step] for step in (STEPS - EVERY, STEPS)}


def test_a_run_whose_requests_fail_now_and_then_has_the_bits_of_a_run_on_a_disk(
    s3_bucket, s3_server, start_run, tmp_path
):
    straight, workdir = start_run(tmp_path / "run"), f"{s3_bucket}/run"
    for number, fault in enumerate(FAULTS):
        s3_server.fail_share("/run/checkpoints/", fault, 0.2 / len(FAULTS), seed=number)
    finish(start_run(workdir))
    struck = [row for row in s3_server.requests("/run/checkpoints/") if row["fault"]]
    assert len(struck) > 10
    s3_server.reset()
    finish(straight)
    assert arrays(workdir) == arrays(str(tmp_path / "run"))


def test_two_processes_share_a_work_directory_and_publish_only_what_both_have_written(
    s3_bucket, s3_server, start_run, free_port
):
    workdir = f"{s3_bucket}/run"
    together = [f"--coordinator-address=127.0.0.1:{free_port}", "--num-processes=2"]
    together.append("--host-timeout-seconds=10")
    first, second = (start_run(workdir, *together, f"--process-id={i}") for i in range(2))
    assert kill_at(s3_server, second, "^PUT .*checkpoints/40/state/ocdbt.process_1/")
    s3_server.reset()
    code, _ = first.wait(DEADLINE_SECONDS)
    assert code != 0
    assert arrays(workdir).keys() == {20}
    again = [start_run(workdir, *together, f"--process-id={i}") for i in range(2)]
    assert "resuming from the checkpoint of step 20" in finish(again[0])
    finish(again[1])
    assert arrays(workdir).keys() == {20, 40}


def test_the_parts_of_an_array_that_two_processes_wrote_are_merged_for_any_number_of_devices(
    s3_bucket, s3_server, start_run, free_port
):
    workdir = f"{s3_bucket}/run"
    parts = [
        start_run(workdir, str(free_port), str(i), "2", program=SAVES_A_PART) for i in range(2)
    ]
    for process in parts:
        finish(process)
    for index in range(2):
        row = rf"^PUT .*/1/state/ocdbt.process_{index}/d/"
        assert s3_server.requests(row)
    flags = "--xla_force_host_platform_device_count=4"
    finish(start_run(workdir, "0", "0", "1", program=SAVES_A_PART, XLA_FLAGS=flags))
    assert arrays(workdir).keys() == {1}


def test_a_run_in_a_bucket_that_is_part_of_the_host_name_has_the_bits_of_a_run_on_a_disk(
    s3_bucket, s3_server, start_run, tmp_path
):
    straight, workdir = start_run(tmp_path / "run"), f"{s3_bucket}/run"
    # A proxy needs no address for the name.
    port = s3_server.url.rpartition(":")[2]
    there = {"AWS_ENDPOINT_URL": f"http://s3.test:{port}", "http_proxy": s3_server.url}
    there |= {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "NO_PROXY": "", "no_proxy": ""}
    finish(start_run(workdir, **there))
    finish(straight)
    hosts = {request["host"] for request in s3_server.requests("/run/")}
    assert hosts == {f"{s3_bucket.removeprefix('s3://')}.s3.test"}
    assert arrays(workdir) == arrays(str(tmp_path / "run"))


@pytest.mark.skipif(not shutil.which("strace"), reason="there is no strace")
def test_a_run_connects_to_the_endpoint_only(s3_bucket, s3_server, tmp_path):
    trace, workdir = tmp_path / "trace", f"{s3_bucket}/run"
    command = f"strace -f -qq -e trace=connect -o {trace} {sys.executable} -m line_worker"
    env = os.environ | s3_server.env | {"JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = f"{HERE.parents[1]}{os.pathsep}{HERE}"
    for steps in (20, 40):
        flags = (f"--workdir={workdir}", f"--max-steps={steps}")
        subprocess.run([*command.split(), *flags], env=env, check=True, timeout=DEADLINE_SECONDS)
        addresses = re.findall(r'htons\((\d+)\).*?"(.*?)"', trace.read_text())
        assert set(addresses) == {(s3_server.url.rpartition(":")[2], "127.0.0.1")}
    assert arrays(workdir).keys() == {20, 40}
