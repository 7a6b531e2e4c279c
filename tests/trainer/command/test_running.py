"""The modes of a recipe of one's own, in this process."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from trainer.command.running import run
from trainer.pages.config import Pages
from trainer.recipe import Recipe


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
    assert capsys.readouterr().out == "fast_dev_run: everything works, predictions too. Nothing was written.\n"
    assert not [path for path in Path(tried.trainer.workdir).rglob("*") if path.is_file()]


def test_a_fast_dev_run_finds_predictions_that_are_no_dict(recipe):
    with pytest.raises(InputError, match=r"predict_fn returned an array\. It must return a dict"):
        run(recipe(lambda x: x, mode="evaluate"))


def test_a_fast_dev_run_finds_a_prediction_that_json_cannot_hold(recipe, monkeypatch):
    monkeypatch.setattr(Vectors, "prediction", lambda self, values: {"sum": {values["sum"]}})
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        run(recipe(lambda x: {"sum": x.sum(1)}, mode="evaluate"))


def test_a_page_is_written_by_look_and_by_report_but_not_in_a_fast_dev_run(recipe, capsys, tmp_path):
    path = tmp_path / "page.html"
    pages = Pages(report=str(path))
    for mode in ("evaluate", "look"):
        tried = recipe(lambda x: {"sum": x.sum(1)}, mode=mode, pages=pages)
        run(tried)
        assert "Nothing was written." in capsys.readouterr().out
        assert not path.exists()
    looked = replace(tried, trainer=replace(tried.trainer, fast_dev_run=None))
    run(looked)
    assert capsys.readouterr().out == f"the page of what the model sees is {path}\n"
    html = path.read_text()
    assert "16 training records" in html
    assert "cannot draw a record again" in html


def test_without_report_the_page_of_look_is_in_the_work_directory(recipe):
    tried = recipe(lambda x: {"sum": x.sum(1)}, mode="look")
    run(replace(tried, trainer=replace(tried.trainer, fast_dev_run=None)))
    assert [path.name for path in Path(tried.trainer.workdir).iterdir()] == ["look.html"]
