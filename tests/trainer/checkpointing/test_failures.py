"""A bucket that takes or gives no checkpoint: one clear error within a bound, and a process that can end.

In a process of its own, because Orbax leaves threads behind that wait for five minutes."""

import json
import os
import re
from pathlib import Path

import pytest
from fake_gcs.server import Stall, Status

from pipeline.errors import NanError
from trainer.checkpointing.manager import CheckpointManager

ROOT = Path(__file__).parents[3]
SAVES = """
import json, os, sys, time
import jax.numpy as jnp
from pipeline.storage import gcs_calls
from pipeline.errors import InfeedError
from trainer.checkpointing import orbax_paths
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.config import TrainerConfig
from trainer.exits import end
from trainer.state import TrainState
from trainer.task import Variables

gcs_calls.RETRY_SECONDS, gcs_calls.WAIT_SECONDS = 1.0, (0.05, 0.2)
orbax_paths.TENSORSTORE_RETRIES = {"max_retries": 2, "initial_delay": "50ms", "max_delay": "200ms"}
os.environ["TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"] = "1"
state = TrainState(jnp.int32(20), Variables({"w": jnp.arange(100.0)}), (), jnp.zeros(2, jnp.uint32))
told, *workdirs = sys.argv[1:]
for workdir in workdirs:
    begun = time.monotonic()
    try:
        config = TrainerConfig(workdir=workdir, global_batch_size=1, save_seconds=2)
        with CheckpointManager(config) as checkpoints:
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
        "cannot write to gs://failing/stalled/checkpoints: it has not finished after 2 s (save_seconds).",
    ),
}


@pytest.fixture(scope="module")
def told(open_bucket, gcs_server, fork_server, tmp_path_factory):
    """[(seconds, error)] of saving into each of these work directories, and reading it again."""
    with open_bucket("failing") as bucket:
        for pattern, (fault, _) in FAILURES.items():
            gcs_server.fail(pattern.replace("/", "(?:/|%2F)"), fault, times=None)
        workdirs = [f"{bucket}/{name}" for name in ("works", "unread", "closed", "broken", "arrays", "stalled")]
        directory, env = tmp_path_factory.mktemp("failing"), os.environ | {"PYTHONPATH": str(ROOT)}
        command = ["-c", SAVES, str(directory / "told"), *workdirs]
        # The time limit is for a process that waits for a thread at its end.
        code, printed = fork_server.run(command, directory / "printed", env, timeout=90)
    assert code == 2, printed
    assert "left" in printed
    told = [json.loads(line) for line in (directory / "told").read_text().splitlines()]
    assert len(told) == len(FAILURES), printed  # none for the one that works
    return told


@pytest.mark.parametrize("pattern", FAILURES)
def test_a_checkpoint_that_cannot_be_written_or_read_is_named_within_seconds(told, pattern):
    seconds, error = told[list(FAILURES).index(pattern)]
    assert error.startswith(FAILURES[pattern][1])
    assert seconds < 10  # the budgets: 1 s for a request of ours, 2 s for a save, about 3 s for a stalled read


def test_a_stalled_read_names_the_object_and_the_attempts(told):
    _, error = told[0]
    assert re.search(r"gs://failing/unread/checkpoints/20/state/d/\w+: All 2 retry attempts failed: .*too slow", error)


def test_a_save_that_fails_as_well_does_not_hide_what_ended_the_run(config, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("trainer.checkpointing.manager.abandon_threads", lambda: None)

    def fail():
        raise OSError("the disk is full")

    with pytest.raises(NanError, match="the first"), CheckpointManager(config()) as checkpoints:
        monkeypatch.setattr(checkpoints.manager, "wait_until_finished", fail)
        raise NanError("the first")
    assert f"cannot write to {tmp_path}/run/checkpoints: the disk is full" in caplog.text
