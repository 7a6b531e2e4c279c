"""Recipes that cannot be run, what is taken from a run's history, and the line about predictions."""

import re
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

from trainer.__main__ import main
from trainer.commands import is_ours
from trainer.commands.recorded import as_trained
from trainer.optimizers.config import OptimizerConfig
from trainer.recipe import Recipe, settings
from trainer.reports.segments import Invocation, Start, append

BASE = """
from dataclasses import dataclass, field
from trainer.recipe import Recipe, TrainerConfig, settings
"""
METHODS = """
    def task(self): ...
    def train_input(self, ctx): ...
    def eval_input(self, ctx): ...
"""
RECIPE = f"{BASE}@dataclass(frozen=True, kw_only=True)\nclass Wine(Recipe):{METHODS}"


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """refused(code, name): the lines on stderr of a command that runs `name`, where mine.py has this code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(code, name):
        (tmp_path / "mine.py").write_text(code)
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        assert main([name, "--workdir", "w"]) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        ("", "mines:Config", "there is no module 'mines'"),
        ("", "mine.inner", "no recipe 'mine.inner'.* to the directory with mine/inner.py"),
        ("", "mine.py", "mine.py is a file. Give .* its module: python -m trainer mine:Config"),
        ("", "--mode", "'--mode' is not the name of a recipe"),
        ("import nowhere", "mine", "imported: ModuleNotFoundError: .*'nowhere'\n  mine.py:1, "),
        ("x = 1\ny = 1 / 0", "mine", "ZeroDivisionError: .*\n  mine.py:2, in <module>: y = 1"),
        ("x = (1", "mine", "SyntaxError: '\\(' was never closed .*\n  mine.py:1: x = \\(1"),
        ("raise SystemExit(3)", "mine", "mine ended the program while .*, with exit code 3"),
        (f"{BASE}settings(seed=-1)", "mine", "OptionError: seed=-1 .*\n  mine.py:4, in"),
        ("x = 1", "mine", "mine has no class 'Config'. A recipe is a dataclass"),
        (RECIPE, "mine", "Its recipes: Wine. Run one: python -m trainer mine:Wine"),
        (RECIPE, "mine:Wint", "mine has no class 'Wint'. Did you mean 'Wine'?"),
        (f"{BASE}class Config: ...", "mine", "is a class, but not a recipe"),
        ("Config = 3", "mine", "mine:Config is a int, but not a recipe"),
        (f"{BASE}class Config(Recipe):\n    x: int = 1", "mine", "mine:Config is not a dataclass"),
        (f"{BASE}@dataclass\nclass Config(Recipe): ...", "mine", "inherit non-frozen dataclass"),
        (RECIPE.replace("eval_input", "other"), "mine:Wine", "lacks the methods eval_input"),
        (RECIPE.replace("def task", "seed: int\n    def task"), "mine:Wine", "has a field 'seed'"),
    ],
)
def test_a_broken_or_missing_recipe_is_one_error(refused, code, name, text):
    printed = refused(code, name)
    assert printed.startswith("error: ")
    assert "Traceback" not in printed
    assert re.search(text.replace("?", r"\?"), printed), printed


def test_a_library_that_training_needs_is_named_with_the_command_that_installs_it(
    refused, monkeypatch
):
    monkeypatch.setitem(sys.modules, "optax", None)
    assert "Install what training needs: pip install -e '" in refused("import optax", "mine")


def test_only_the_names_and_places_of_its_own_recipes_are_infeeds():
    assert is_ours("mnist")
    assert is_ours("trainer.recipes.imagenet_resnet50:TpuConfig")
    assert not is_ours("mnist:Config")


@dataclass(frozen=True, kw_only=True)
class Own(Recipe):
    """A recipe of a user's."""

    width: int = 1
    sizes: tuple[int, ...] = (1,)
    module: str = "mine"
    flip: bool = True
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def task(self):
        raise NotImplementedError

    def train_input(self, ctx):
        return [np.ones(1)]

    eval_input = train_input


def test_of_a_recipe_of_ones_own_numbers_and_the_optimizer_are_taken_but_none_that_is_given(
    tmp_path,
):
    options = f"--width=3 --sizes 4 5 --module=theirs --optimizer=sgd --workdir={tmp_path}".split()
    (tmp_path / "train").mkdir()
    command = Invocation("own:Own", options, ".")
    append(str(tmp_path), Start(0, "2026-11-26T12:00:00+00:00", {}, None, {}, command, {}, "cpu"))
    recipe = Own(mode="evaluate", trainer=settings(workdir=str(tmp_path)))
    taken, _ = as_trained(recipe, "own:Own", ["--workdir", str(tmp_path)])
    assert (taken.width, taken.sizes, taken.module) == (3, (4, 5), "mine")
    assert taken.optimizer.optimizer == "sgd"  # its statistics are in the checkpoint
    given, _ = as_trained(recipe, "own:Own", ["--width=1"])
    assert (given.width, given.sizes) == (1, (4, 5))
    unflipped, _ = as_trained(
        Own(mode="evaluate", flip=False, trainer=recipe.trainer), "own:Own", ["--no-flip"]
    )
    assert (unflipped.width, unflipped.flip) == (3, False)
    assert as_trained(recipe, "other:Own", []) == (recipe, [])
