"""The modes of a recipe of one's own, in this process."""

import html
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import InputError
from trainer.commands.running import run
from trainer.recipe import DataRecipe, Recipe
from trainer.reports.segments import Invocation


@dataclass(frozen=True, kw_only=True)
class Vectors(Recipe):
    made: Any
    input_fn: Any

    def task(self):
        return self.made

    def train_input(self, ctx):
        return self.input_fn(ctx)

    def eval_input(self, ctx):
        return self.input_fn(ctx)


@pytest.fixture
def recipe(dense_task, vector_input, config):
    def make(predict, **fields):
        task = replace(dense_task, predict_fn=lambda variables, batch: predict(batch["x"]))
        return Vectors(made=task, input_fn=vector_input, trainer=config(fast_dev_run=1), **fields)

    return make


def test_a_fast_dev_run_tries_predictions_too_and_writes_nothing(recipe, capsys):
    tried = recipe(lambda x: {"sum": x.sum(1)})
    run(tried)
    assert (
        capsys.readouterr().out
        == "fast_dev_run: everything works, predictions too. Nothing was written.\n"
    )
    assert not [path for path in Path(tried.trainer.workdir).rglob("*") if path.is_file()]


def test_a_fast_dev_run_finds_predictions_that_are_no_dict(recipe):
    with pytest.raises(InputError, match=r"predict_fn returned an array\. It must return a dict"):
        run(recipe(lambda x: x, mode="evaluate"))


def test_a_fast_dev_run_finds_a_prediction_that_json_cannot_hold(recipe, monkeypatch):
    monkeypatch.setattr(Vectors, "prediction", lambda self, values: {"sum": {values["sum"]}})
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        run(recipe(lambda x: {"sum": x.sum(1)}, mode="evaluate"))


def test_no_page_is_written_in_a_fast_dev_run(recipe, capsys, tmp_path):
    run(recipe(lambda x: {"sum": x.sum(1)}, mode="evaluate", report=f"{tmp_path}/page.html"))
    assert "Nothing was written." in capsys.readouterr().out
    assert not (tmp_path / "page.html").exists()


def images(seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (48, 8, 8, 3)).astype(np.uint8)
    return {
        "image": pixels,
        "x": rng.normal(size=(48, 8)).astype(np.float32),
        "label": np.arange(48) % 3,
    }


@dataclass(frozen=True, kw_only=True)
class Images(DataRecipe):
    """Reads its own records, or others of the same number."""

    made: Any
    read: Any = None

    def task(self):
        return self.made

    def tiny_records(self, split):
        return images(seed=0)

    def train_input(self):
        return train_dataset(self.train_records if self.read is None else self.read, seed=1)

    def eval_input(self):
        return eval_dataset(self.eval_records if self.read is None else self.read)


def page_of(recipe, tmp_path):
    """The text of the page that run writes."""
    path = tmp_path / "page.html"
    options = ["--mode", recipe.mode, "--workdir", "my run"]
    run(replace(recipe, report=str(path)), Invocation("mine.recipes:Odd", options, "/"))
    return path.read_text()


@pytest.mark.parametrize(
    ("read", "ema_decay", "pictures", "model"),
    [
        (None, None, 24, "the parameters as trained"),
        (images(seed=1), 0.9, 0, "the averaged parameters"),
    ],
    ids=["own records", "other records"],
)
def test_the_page_of_an_evaluation_has_the_model_the_command_and_no_pictures_of_records_that_were_not_read(
    dense_task, config, tmp_path, capsys, read, ema_decay, pictures, model
):
    settings = config(max_steps=1, global_batch_size=8, ema_decay=ema_decay)
    page = page_of(Images(made=dense_task, read=read, tiny=True, trainer=settings), tmp_path)
    assert page.count("<img ") == pictures
    assert f">{model}</td>" in page
    command = html.unescape(re.findall("<footer>Made by <code>(.*)</code></footer>", page)[0])
    assert command == "python -m trainer mine.recipes:Odd --mode train --workdir 'my run'"
    assert f"evaluation page written to {tmp_path / 'page.html'}\n" in capsys.readouterr().out
    facts = re.findall("<td[^>]*>(data|split)</td>\n<td[^>]*>(.*)</td>", page)
    assert facts == [("data", "--tiny"), ("split", "validation")]
