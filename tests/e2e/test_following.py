"""One process trains in a bucket, this one follows it: the training waits for the first evaluation before it ends."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config import TrainerConfig
from trainer.task import Task
from trainer.trainer import Trainer

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
TRAINS = """
import sys, time
import line_worker, optax
from pipeline.storage.schemes import open_storage
from trainer.config import TrainerConfig
from trainer.task import Task
from trainer.trainer import Trainer

workdir = sys.argv[1]

def batches(ctx):
    for step, batch in enumerate(line_worker.batches(ctx)):
        while step == 30 and not open_storage(workdir).exists(f"{workdir}/eval_line"):
            time.sleep(0.1)
        yield batch

settings = {"checkpoint_every_steps": 20, "iterations_per_loop": 5, "keep_max": 1}
task = Task(line_worker.init, line_worker.loss_fn, optax.adam(0.1))
Trainer(task, TrainerConfig(workdir=workdir, global_batch_size=16, **settings)).train(batches, max_steps=40)
"""


@pytest.fixture
def training(gcs_server, bucket, tmp_path):
    """(its work directory, the process that trains in it for 40 steps, with checkpoints at 20 and 40)"""
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    path = f"{HERE.parents[1]}{os.pathsep}{HERE}"
    env = clean | gcs_server.env | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    workdir = f"{bucket}/model"
    with (tmp_path / "printed.txt").open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINS, workdir], env=env, stdout=printed, stderr=subprocess.STDOUT
        )
        yield workdir, process
        process.kill()
        process.wait()


def test_a_process_follows_another_that_trains_in_a_bucket_to_its_last_step(training, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(HERE)
    import line_worker
    import optax

    workdir, process = training
    task = Task(line_worker.init, line_worker.loss_fn, optax.adam(0.1))
    follower = Trainer(task, TrainerConfig(workdir=workdir, global_batch_size=16, max_steps=40))
    first, last = follower.evaluate_continuously(
        lambda ctx: itertools.islice(line_worker.batches(ctx), 3), name="line", timeout_seconds=90, poll_seconds=0.2
    )
    assert process.wait(60) == 0, (tmp_path / "printed.txt").read_text()
    assert [first.step, last.step] == [20, 40]
    assert last.metrics["loss"] < first.metrics["loss"]
