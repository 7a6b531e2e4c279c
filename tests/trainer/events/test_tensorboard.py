"""TensorBoard itself, started once on a run that broke and went on: what it serves."""

import contextlib
import io
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

from pipeline.errors import InputError
from trainer.callbacks import Callback
from trainer.config import TrainerConfig
from trainer.task import Task, Variables
from trainer.trainer import Trainer

# TensorBoard's own stand-in for tensorflow, whose import is slow.
PROGRAM = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
from tensorboard.main import run_main
run_main()
"""
# By no proxy, also where an earlier test of this process had one: urlopen keeps the first that it met.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
STRIPES = np.kron(np.eye(2, dtype=np.uint8) * 255, np.ones((4, 4), np.uint8))[:, :, None]


class Pictures(Callback):
    def on_checkpoint(self, end):
        end.reports.image(end.step, "stripes", STRIPES)
        end.reports.histogram(end.step, "weights", end.state.variables.params)


def _loss(variables, batch, rng, train):
    return (batch["x"] @ variables.params - batch["y"]) ** 2, variables, None


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run that ended at step 9 with an error, went on from the checkpoint of step 5 to step 12, and was evaluated."""
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    batch = {"x": x, "y": x.sum(axis=1)}
    task = Task(lambda rng, spec: Variables(jnp.zeros(4)), _loss, optax.sgd(0.1))
    config = TrainerConfig(
        workdir=str(tmp_path_factory.mktemp("tensorboard")),
        global_batch_size=8,
        iterations_per_loop=1,
        checkpoint_every_steps=5,
    )
    trainer = Trainer(task, config, callbacks=[Pictures()])
    with pytest.raises(InputError):
        trainer.train(lambda ctx: [batch] * 9, max_steps=12)
    trainer.train(lambda ctx: [batch] * 7, max_steps=12)
    trainer.evaluate(lambda ctx: [batch])
    return config.workdir


@pytest.fixture(scope="module")
def tensorboard(workdir):
    """The address of a TensorBoard that shows this directory, and has loaded the last event of each run."""
    arguments = ["--logdir", workdir, "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            said = iter(process.stderr.readline, "")
            address = next(found[1] for line in said if (found := re.search(r" at (http://\S+/) ", line)))
            _wait_for(f"{address}data/plugin/histograms/histograms?run=train&tag=weights", 12)
            _wait_for(f"{address}data/plugin/scalars/scalars?run=eval&tag=loss", 12)
            yield address
        finally:
            process.terminate()


def _wait_for(url, last_step):
    """It serves while it loads: at first without the tag, then with some of the steps."""
    stop, steps = time.monotonic() + 150, []  # it loads one file after the other, on a busy machine
    while last_step not in steps:
        assert time.monotonic() < stop, f"{url} has only the steps {steps}"
        with contextlib.suppress(urllib.error.HTTPError), DIRECT.open(url, timeout=10) as answer:
            steps = [step for _, step, _ in json.loads(answer.read())]
        time.sleep(0.2)


@pytest.fixture
def serves(tensorboard):
    """serves(path): the JSON that TensorBoard answers with, or its bytes."""

    def get(path):
        with DIRECT.open(f"{tensorboard}data/{path}", timeout=10) as answer:
            data = answer.read()
            return json.loads(data) if answer.headers.get_content_type() == "application/json" else data

    return get


def test_tensorboard_serves_every_step_once_with_the_values_of_metrics_jsonl(serves, workdir):
    assert sorted(serves("runs")) == ["eval", "train"]
    tags = {run: set(of_run) for run, of_run in serves("plugin/scalars/tags").items()}
    assert tags["eval"] == {"loss"}
    for run in ("train", "eval"):
        lines = [json.loads(line) for line in Path(workdir, run, "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == (list(range(1, 13)) if run == "train" else [12])
        assert tags[run] == {tag for line in lines for tag in line} - {"step", "time"}
        for tag in tags[run]:
            points = [(step, value) for _, step, value in serves(f"plugin/scalars/scalars?run={run}&tag={tag}")]
            expected = [(line["step"], np.float32(line[tag])) for line in lines if tag in line]
            assert points == expected


def test_tensorboard_serves_images_histograms_and_settings(serves):
    images = serves("plugin/images/images?run=train&tag=stripes&sample=0")
    assert [image["step"] for image in images] == [5, 10, 12]
    shown = np.asarray(Image.open(io.BytesIO(serves(f"plugin/images/individualImage?{images[-1]['query']}"))))
    np.testing.assert_array_equal(shown, STRIPES[:, :, 0])
    histograms = serves("plugin/histograms/histograms?run=train&tag=weights")
    counted = [(step, sum(count for _, _, count in buckets)) for _, step, buckets in histograms]
    assert counted == [(5, 4), (10, 4), (12, 4)]
    texts = serves("plugin/text/text?run=train&tag=config")
    assert [text["step"] for text in texts] == [0, 5]
    assert "iterations_per_loop" in texts[1]["text"]
