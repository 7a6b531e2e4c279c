"""Mistakes in a user's task or input: a short error with the user's own line, from the command and from Python."""

import re
import sys
import traceback
from dataclasses import replace

import jax
import pytest

from trainer.__main__ import main
from trainer.config import TrainerConfig
from trainer.trainer import Trainer

RECIPE = """
from dataclasses import dataclass
import jax.numpy as jnp
import numpy as np
import optax
from trainer.recipe import Recipe, TrainerConfig, settings
from trainer.task import Task, Variables

@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    trainer: TrainerConfig = settings(max_steps=2, global_batch_size=16)

    def task(self):
        def init(rng, spec):
            return {init}

        def loss_fn(variables, batch, rng, train):
            outputs = {outputs}
            return {returned}

        return Task(init, loss_fn, optax.sgd(0.1), {{"error": lambda outputs, batch: {metric}}})

    def train_input(self, ctx):
        x = np.ones(({rows}, 3), np.float32)
        return iter([{{"x": {x}, "y": x[:, 0]}}] * 9)

    eval_input = train_input
"""
RIGHT = {
    "init": "Variables({'w': jnp.zeros(3)})",
    "outputs": "batch['x'] @ variables.params['w']",
    "returned": "(outputs - batch['y']) ** 2, variables, outputs",
    "metric": "outputs",
    "rows": "ctx.per_host_batch_size",
    "x": "x",
}
BATCH = r"\(the batch: x float32 \[16, 3\], y float32 \[16\]\)"
# What is wrong, and what the command prints.
MISTAKES = [
    ("outputs", "batch['z']", rf"KeyError: 'z' {BATCH}\n  mine.py:18, in loss_fn: outputs = batch\['z'\]\n"),
    ("outputs", "batch['x'] @ jnp.ones(4)", rf"TypeError: .* {BATCH}\n  mine.py:18, in loss"),
    ("metric", "outputs['q']", r"TypeError: .*\(in the metric 'error'\) .*\n  mine.py:21, in <lambda>"),
    ("returned", "outputs.mean(), variables, outputs", r"loss has the shape \[\]"),
    ("returned", "outputs", "loss_fn returned an array"),
    ("returned", "outputs, {}, outputs", "loss_fn returned a tuple of 3"),
    ("init", "{'w': jnp.zeros(3)}", "init returned a dict"),
    ("rows", "5", r"the input's x is float32 \[5, 3\]"),
    ("x", "x / nowhere", r"NameError: name 'nowhere' is not defined\n  mine.py:25, in train_input"),
]  # fmt: skip


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(wrong): makes a module `mine` whose recipe has that mistake."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(wrong):
        (tmp_path / "mine.py").write_text(RECIPE.format(**RIGHT | wrong))
        monkeypatch.delitem(sys.modules, "mine", raising=False)

    return write


@pytest.mark.parametrize(("place", "code", "text"), MISTAKES)
def test_a_mistake_in_user_code_is_one_error_with_the_user_line(written, place, code, text, capsys):
    written({place: code})
    assert main(["mine", "--workdir", "w"]) == 2
    *_, printed = re.split("(?=^error: )", capsys.readouterr().err, flags=re.M)
    assert re.match(f"error: {text}", printed), printed
    assert len(printed.splitlines()) <= 2


@pytest.mark.parametrize("call", ["train", "predict"])
def test_from_python_only_the_frames_of_the_user_are_shown(written, call, tmp_path):
    written(RIGHT)
    import mine

    config = TrainerConfig(workdir=str(tmp_path / "w"), global_batch_size=16, max_steps=2)
    task = mine.Config(trainer=config).task()

    def broken(ctx):
        return [][ctx.global_batch_size]

    trainer = Trainer(task, config, jax.devices()[:1])
    if call != "train":
        trainer.train(mine.Config(trainer=config).train_input)
        task = replace(task, predict_fn=lambda variables, batch: {})
        trainer = Trainer(task, config, jax.devices()[:1])
    with pytest.raises(IndexError) as caught:
        made = getattr(trainer, call)(broken)
        list(made)
    frames = traceback.extract_tb(caught.tb)
    assert frames[-1].name == "broken"
    files = [frame.filename for frame in frames]
    assert not [file for file in files if "/trainer/" in file and "/tests/" not in file]
    shown = "Only your own frames are shown. JAX_TRACEBACK_FILTERING=off shows all."
    assert caught.value.__notes__[-1] == shown


def test_all_frames_are_shown_to_those_who_ask(written, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    written({"outputs": "batch['z']"})
    with pytest.raises(KeyError) as caught:
        main(["mine", "--workdir", "w"])
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert [name for name in names if name in ("program", "loss_fn")] == ["program", "loss_fn"]


def test_an_error_without_a_frame_of_the_user_is_ours_and_keeps_its_traceback(written, monkeypatch):
    written({})
    monkeypatch.setattr("trainer.loop.job.as_input", None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable") as caught:
        main(["mine", "--workdir", "w"])
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[-3:] == ["train", "open", "open"]
