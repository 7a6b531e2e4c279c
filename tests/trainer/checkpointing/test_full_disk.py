"""No room under the work directory: one line that says where, why and what to do.

A process that may write only small files stands for one whose disk is full."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAVES = """
import json, logging, resource, sys
import jax.numpy as jnp
from pipeline.errors import InfeedError
from pipeline.storage.local import LocalStorage
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.config import TrainerConfig
from trainer.events.reports import Reports
from trainer.exits import end
from trainer.state import TrainState
from trainer.task import Variables

told, workdir = sys.argv[1:]
logging.getLogger("absl").setLevel(logging.CRITICAL)  # as the command does: it logs a failure several times
errors = {}
config = TrainerConfig(workdir=workdir, global_batch_size=1)
state = TrainState(jnp.int32(20), Variables({"w": jnp.arange(100_000.0)}), (), jnp.zeros(2, jnp.uint32))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    with LocalStorage().publish(f"{workdir}/result.json") as sink:
        sink.write(bytes(200_000))
except InfeedError as error:
    errors["file"] = str(error)
try:
    with CheckpointManager(config) as checkpoints:
        checkpoints.on_complete = lambda step: errors.update(complete=step)
        checkpoints.save(Saved(20, state, {}, {}))
        while True:
            checkpoints.settle()  # as a run does between dispatches
except InfeedError as error:
    errors["checkpoint"] = str(error)
for name in ("flushed", "closed"):
    try:
        with Reports(config, name) as reports:
            reports.text(1, "long", "word" * 50_000)
            if name == "flushed":
                reports.flush()
    except InfeedError as error:
        errors[name] = str(error)
with open(told, "w") as file:
    json.dump(errors, file)
end(7)
"""
ADVICE = "It is larger than this process (ulimit -f) or the file system allows; choose another place."


@pytest.fixture(scope="module")
def failed(fork_server, tmp_path_factory):
    """(work directory, what -> its error)."""
    directory = tmp_path_factory.mktemp("full")
    workdir, told, env = directory / "work", directory / "told", os.environ | {"PYTHONPATH": str(ROOT)}
    code, printed = fork_server.run(["-c", SAVES, str(told), str(workdir)], directory / "printed", env, timeout=120)
    assert code == 7, printed
    return workdir, json.loads(told.read_text())


def test_a_checkpoint_for_which_there_is_no_room_says_where_and_what_to_do(failed):
    workdir, errors = failed
    assert errors["checkpoint"].startswith(f"cannot write to {workdir}/checkpoints: ")
    assert "File too large" in errors["checkpoint"]
    assert errors["checkpoint"].endswith(ADVICE)
    assert "\n" not in errors["checkpoint"]
    assert "complete" not in errors


def test_a_result_for_which_there_is_no_room_says_so_and_leaves_no_file(failed):
    workdir, errors = failed
    assert errors["file"] == f"cannot write {workdir}/result.json: File too large. {ADVICE}"
    assert not list(workdir.glob("*result*"))


@pytest.mark.parametrize("what", ["flushed", "closed"])
def test_metrics_for_which_there_is_no_room_say_so(failed, what):
    workdir, errors = failed
    assert errors[what] == f"cannot write to {workdir}/{what}: File too large. {ADVICE}"
