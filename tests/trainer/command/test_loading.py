"""Recipes that cannot be run: one error, which states what is missing and where."""

import re
import sys

import pytest

from trainer.__main__ import main
from trainer.command.names import is_ours

BASE = """
from dataclasses import dataclass
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
        (
            "",
            "mines:Config",
            "error: there is no module 'mines'. For a recipe of your own, change to the directory with",
        ),
        (
            "",
            "mines",
            "there is no recipe 'mines'. Did you mean 'mnist'? Known: .*, mnist, tabular. Nor is there a module",
        ),
        ("", "mine.inner", "there is no recipe 'mine.inner'.* change to the directory with mine/inner.py"),
        ("", "mine.py", r"mine.py is a file. Give the name of its module: python -m trainer mine:Config, in the dir"),
        ("", "--mode", "'--mode' is not the name of a recipe. Give it first, before all flags"),
        (
            "import nowhere",
            "mine",
            "mine cannot be imported: ModuleNotFoundError: No module named 'nowhere'\n  mine.py:1, ",
        ),
        (
            "x = 1\ny = 1 / 0",
            "mine",
            "mine cannot be imported: ZeroDivisionError: .*\n  mine.py:2, in <module>: y = 1 / 0",
        ),
        ("x = (1", "mine", "SyntaxError: '\\(' was never closed .*\n  mine.py:1: x = \\(1"),
        ("raise SystemExit(3)", "mine", "mine ended the program while it was imported, with exit code 3. Put what it"),
        (
            f"{BASE}settings(seed=-1)",
            "mine",
            "mine cannot be imported: OptionError: seed=-1 .*\n  mine.py:4, in <module>",
        ),
        (
            "x = 1",
            "mine",
            "mine has no class 'Config'. A recipe is a dataclass that subclasses Recipe or DataRecipe of",
        ),
        (RECIPE, "mine", "mine has no class 'Config'. Its recipes: Wine. Run one: python -m trainer mine:Wine"),
        (RECIPE, "mine:Wint", "mine has no class 'Wint'. Did you mean 'Wine'?"),
        (
            f"{BASE}class Config: ...",
            "mine",
            "mine:Config is a class, but not a recipe. A recipe is a dataclass",
        ),
        ("Config = 3", "mine", "mine:Config is a int, but not a recipe. A recipe is a dataclass"),
        (
            f"{BASE}class Config(Recipe):\n    x: int = 1",
            "mine",
            "mine:Config is not a dataclass. Put @dataclass\\(frozen=Tr",
        ),
        (
            f"{BASE}@dataclass\nclass Config(Recipe): ...",
            "mine",
            "cannot inherit non-frozen dataclass from a frozen one. Put @dataclass\\(frozen=True, kw_only=True\\)",
        ),
        (
            RECIPE.replace("def eval_input", "def evaluation_input"),
            "mine:Wine",
            "mine:Wine lacks the methods eval_input\\(self, ctx\\). trainer/RECIPES.md has",
        ),
        (
            RECIPE.replace("def task", "seed: int = 0\n    def task"),
            "mine:Wine",
            "mine:Wine has a field 'seed', but .*--seed exists already: use self.trainer.seed, or rename it.",
        ),
    ],
)
def test_a_broken_or_missing_recipe_is_one_error(refused, code, name, text):
    printed = refused(code, name)
    assert printed.startswith("error: ")
    assert "Traceback" not in printed
    assert re.search(text.replace("?", r"\?"), printed), printed


def test_a_library_that_training_needs_is_named_with_the_command_that_installs_it(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    assert "Install what training needs: pip install -e '" in refused("import optax", "mine")


def test_only_the_names_and_places_of_its_own_recipes_are_infeeds():
    assert is_ours("mnist")
    assert is_ours("trainer.recipes.imagenet_resnet50:TpuConfig")
    assert not is_ours("mnist:Config")
