"""Checkpoints that cannot be written or read: a failing bucket, a full disk, a run that lost its directory."""

import json
import os
import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from fake_gcs.server import Stall, Status

from pipeline.errors import CheckpointError, NanError, OwnerError
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpointing.orbax_paths import remove_unfinished
from trainer.config import TrainerConfig
from trainer.task import TrainState, Variables

ROOT = Path(__file__).parents[3]
SAVES = """
import json, os, sys, time
import jax.numpy as jnp
from pipeline.storage import gcs_calls
from pipeline.errors import InfeedError
from trainer.checkpointing import tensorstore_specs
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.config import TrainerConfig
from trainer.hosts.exits import end
from trainer.task import TrainState
from trainer.task import Variables

gcs_calls.RETRY_SECONDS, gcs_calls.WAIT_SECONDS = 1.0, (0.05, 0.2)
tensorstore_specs.RETRIES = {"max_retries": 2, "initial_delay": "50ms", "max_delay": "200ms"}
os.environ["TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"] = "1"
state = TrainState(jnp.int32(20), Variables({"w": jnp.arange(100.0)}), (), jnp.zeros(2, jnp.uint32))
told, *workdirs = sys.argv[1:]
for workdir in workdirs:
    begun = time.monotonic()
    try:
        config = TrainerConfig(workdir=workdir, global_batch_size=1, work_seconds=2)
        with CheckpointManager(config) as checkpoints:
            checkpoints.activity.saved = 0 if "unread" in workdir else None  # as in a run that resumed
            checkpoints.save(Saved(20, state, {}, {}))
        with CheckpointManager(config) as checkpoints:
            checkpoints.restore(20, state)
    except InfeedError as error:
        with open(told, "a") as file:  # what is printed may be cut in two by what Orbax's threads write to stderr
            print(json.dumps([time.monotonic() - begun, str(error)]), file=file)
print("left")
end(2)
"""

FAILURES = {  # what becomes of every such request -> what is said of it
    "GET .*unread/checkpoints/20/state/d/": (
        Stall(),
        "cannot read gs://failing/unread/checkpoints/20: ABORTED: ",
    ),
    "GET .*lost/checkpoints/20/state/d/": (
        Stall(),
        "the first checkpoint cannot be read again, so this run could not resume: cannot read step of gs://failing/lost/",
    ),
    "^P.*name=closed/checkpoints/20/": (
        Status(403),
        "cannot create gs://failing/closed/checkpoints/20/: permission denied, or a quota is used up (403).",
    ),
    "^P.*name=broken/checkpoints/": (
        Status(503),
        "cannot create gs://failing/broken/checkpoints/: status 503 (",
    ),
    "^P.*name=arrays/checkpoints/20/state/ocdbt.process_0/": (
        Status(503),
        "cannot write to gs://failing/arrays/checkpoints: status 503: ABORTED: ",
    ),
    "^P.*name=stalled/checkpoints/20/state/ocdbt.process_0/": (
        Stall(),
        "cannot write to gs://failing/stalled/checkpoints: it has not finished after 2 s (work_seconds).",
    ),
}


@pytest.fixture(scope="module")
def told(open_bucket, gcs_server, fork_server, tmp_path_factory):
    """[(seconds, error)] of saving into each of these work directories, and reading it again."""
    with open_bucket("failing") as bucket:
        for pattern, (fault, _) in FAILURES.items():
            gcs_server.fail(pattern.replace("/", "(?:/|%2F)"), fault, times=None)
        workdirs = [
            f"{bucket}/{name}"
            for name in ("works", "unread", "lost", "closed", "broken", "arrays", "stalled")
        ]
        directory, env = tmp_path_factory.mktemp("failing"), os.environ | {"PYTHONPATH": str(ROOT)}
        command = ["-c", SAVES, str(directory / "told"), *workdirs]
        # The time limit is for a process that waits for a thread at its end.
        code, printed = fork_server.run(command, directory / "printed", env, timeout=90)
    assert code == 2, printed
    assert "left" in printed
    told = [json.loads(line) for line in (directory / "told").read_text().splitlines()]
    assert len(told) == len(FAILURES), printed  # none for the one that works
    return told


@pytest.mark.slow
@pytest.mark.parametrize("pattern", FAILURES)
def test_a_checkpoint_that_cannot_be_written_or_read_is_named_within_seconds(told, pattern):
    seconds, error = told[list(FAILURES).index(pattern)]
    assert error.startswith(FAILURES[pattern][1])
    # the budgets: 1 s for a request of ours, 2 s for a save, about 3 s for a stalled read
    assert seconds < 10


@pytest.mark.slow
def test_a_stalled_read_names_the_object_and_the_attempts(told):
    _, error = told[0]
    assert re.search(
        r"gs://failing/unread/checkpoints/20/state/d/\w+: All 2 retry attempts failed: .*too slow",
        error,
    )


def test_a_save_that_fails_as_well_does_not_hide_what_ended_the_run(
    config, tmp_path, monkeypatch, caplog
):
    def fail():
        raise OSError("the disk is full")

    with pytest.raises(NanError, match="the first"), CheckpointManager(config()) as checkpoints:
        monkeypatch.setattr(checkpoints.manager, "wait_until_finished", fail)
        raise NanError("the first")
    assert f"cannot write to {tmp_path}/run/checkpoints: the disk is full" in caplog.text


def test_a_run_whose_first_checkpoint_cannot_be_read_ends_there(config, state_at, tmp_path):
    def lose():  # as a disk may, before the checkpoint gets its name
        for file in tmp_path.glob("run/checkpoints/*/state/d/*"):
            file.unlink()

    complete = []
    with CheckpointManager(config(), lose) as checkpoints:
        checkpoints.on_complete = complete.append
        checkpoints.save(Saved(1, state_at(1), {}, {}))
        with pytest.raises(
            CheckpointError,
            match=r"the first checkpoint cannot be read again, so .*: cannot read step of .*run/checkpoints/1/state",
        ):
            checkpoints.settle(wait=True)
    assert not complete


SAVES_WITHOUT_ROOM = """
import json, logging, resource, sys
import jax.numpy as jnp
from pipeline.errors import InfeedError
from pipeline.storage.local import LocalStorage
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.config import TrainerConfig
from trainer.reports.writer import Reports
from trainer.hosts.exits import end
from trainer.task import TrainState
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
ADVICE = (
    "It is larger than this process (ulimit -f) or the file system allows; choose another place."
)


@pytest.fixture(scope="module")
def without_room(fork_server, tmp_path_factory):
    """(work directory, what -> its error)."""
    directory = tmp_path_factory.mktemp("full")
    workdir, told, env = (
        directory / "work",
        directory / "told",
        os.environ | {"PYTHONPATH": str(ROOT)},
    )
    code, printed = fork_server.run(
        ["-c", SAVES_WITHOUT_ROOM, str(told), str(workdir)], directory / "printed", env, timeout=120
    )
    assert code == 7, printed
    return workdir, json.loads(told.read_text())


@pytest.mark.slow
def test_a_checkpoint_for_which_there_is_no_room_says_where_and_what_to_do(without_room):
    workdir, errors = without_room
    assert errors["checkpoint"].startswith(f"cannot write to {workdir}/checkpoints: ")
    assert "File too large" in errors["checkpoint"]
    assert errors["checkpoint"].endswith(ADVICE)
    assert "\n" not in errors["checkpoint"]
    assert "complete" not in errors


@pytest.mark.slow
def test_a_result_for_which_there_is_no_room_says_so_and_leaves_no_file(without_room):
    workdir, errors = without_room
    assert errors["file"] == f"cannot write {workdir}/result.json: File too large. {ADVICE}"
    assert not list(workdir.glob("*result*"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["flushed", "closed"])
def test_metrics_for_which_there_is_no_room_say_so(without_room, what):
    workdir, errors = without_room
    assert errors[what] == f"cannot write to {workdir}/{what}: File too large. {ADVICE}"


def saved(step):
    return Saved(
        step,
        TrainState(jnp.int32(step), Variables(jnp.ones(3)), (), jnp.zeros(2, jnp.uint32)),
        {},
        {},
    )


@pytest.mark.parametrize("where", ["disk", "bucket", "s3_bucket"])
def test_a_checkpoint_does_not_appear_if_the_fence_raises_before_publishing(
    request, tmp_path, where
):
    workdir = str(tmp_path) if where == "disk" else request.getfixturevalue(where)
    settings, asked = TrainerConfig(workdir=f"{workdir}/run", global_batch_size=1), []

    def fence():
        asked.append(where)
        if len(asked) > 1:
            raise OwnerError("taken over")

    with (
        pytest.raises(OwnerError, match="taken over"),
        CheckpointManager(settings, fence) as checkpoints,
    ):
        checkpoints.save(saved(5))
    assert len(asked) == 2
    assert checkpoints.steps() == []
    remove_unfinished(settings.workdir)
    assert checkpoints.steps() == []


def test_a_save_that_fails_because_another_run_took_over_says_so(tmp_path):
    """The new owner removes the unfinished checkpoint of the old one, which then cannot rename it."""
    settings = TrainerConfig(workdir=str(tmp_path), global_batch_size=1)

    def fence():
        if taken_over:
            raise OwnerError("taken over")
        for unfinished in tmp_path.glob("checkpoints/5.*tmp*"):
            taken_over.append(unfinished.rename(tmp_path / "removed"))

    taken_over = []
    with (
        pytest.raises(OwnerError, match="taken over"),
        CheckpointManager(settings, fence) as checkpoints,
    ):
        checkpoints.save(saved(5))
    assert len(taken_over) == 1
    assert checkpoints.steps() == []
