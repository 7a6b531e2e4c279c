"""A bucket that takes no checkpoint: one clear error within a bound, and a process that can end.

In a process of its own, because Orbax leaves threads behind that wait for five minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_gcs.server import Stall, Status

SAVES = """
import json, sys, time
import jax.numpy as jnp
from pipeline.shards import gcs_calls
from pipeline.shards.errors import InfeedError
from trainer import bucket_path
from trainer.checkpoint import Checkpoints, Saved
from trainer.exits import end
from trainer.state import TrainState
from trainer.task import Variables

gcs_calls.RETRY_SECONDS, gcs_calls.WAIT_SECONDS = 1.0, (0.05, 0.2)
bucket_path.TENSORSTORE_RETRIES |= {"initial_delay": "50ms", "max_delay": "200ms"}
state = TrainState(jnp.int32(20), Variables({"w": jnp.arange(100.0)}), (), jnp.zeros(2, jnp.uint32))
for workdir in sys.argv[1:]:
    begun = time.monotonic()
    try:
        with Checkpoints(workdir, save_seconds=3) as checkpoints:
            checkpoints.save(Saved(20, state, {}, {}))
    except InfeedError as error:
        print(json.dumps([time.monotonic() - begun, str(error)]))
print("left")
end(2)
"""

FAILURES = {  # what becomes of every request that writes these -> what is said of it
    "none/": (None, None),
    "closed/checkpoints/20/": (
        Status(403),
        "cannot create gs://failing/closed/checkpoints/20/: permission denied, or a quota is used up (403).",
    ),
    "broken/checkpoints/": (
        Status(503),
        "cannot create gs://failing/broken/checkpoints/: status 503 (",
    ),
    "arrays/checkpoints/20/state/ocdbt.process_0/": (
        Status(503),
        "cannot write to gs://failing/arrays/checkpoints: status 503: ABORTED: ",
    ),
    "stalled/checkpoints/20/state/ocdbt.process_0/": (
        Stall(),
        "cannot write to gs://failing/stalled/checkpoints: it is not done after 3 s (save_seconds).",
    ),
}


@pytest.fixture(scope="module")
def told(open_bucket, gcs_server):
    """[(seconds, error)] of a save into each of these work directories."""
    with open_bucket("failing") as bucket:
        for path, (fault, _) in FAILURES.items():
            if fault:
                gcs_server.fail(f"^P.*name={path}", fault, times=None)
        workdirs = [f"{bucket}/{path.split('/')[0]}" for path in FAILURES]
        program = [sys.executable, "-c", SAVES, *workdirs]
        # Killed, were it to wait for a thread at its end.
        done = subprocess.run(
            program, stdout=subprocess.PIPE, text=True, check=False, timeout=90, cwd=Path(__file__).parents[2]
        )
    assert done.returncode == 2
    *lines, left = done.stdout.splitlines()
    assert left == "left"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", [path for path, (fault, _) in FAILURES.items() if fault])
def test_a_save_that_fails_is_told_by_name_within_its_time(told, path):
    number, (_, text) = list(FAILURES).index(path) - 1, FAILURES[path]
    seconds, error = told[number]
    assert error.startswith(text)
    assert seconds < 10  # the budgets are 1, 2 and 3 s, and tensorstore's a little over one


def test_a_save_into_a_bucket_that_works_raises_nothing(told):
    assert len(told) == len(FAILURES) - 1
