"""The base classes of recipes: their defaults, and what they refuse from Python."""

from dataclasses import dataclass

import numpy as np
import pytest

from pipeline.errors import OptionError
from trainer.commands.loading import parsed
from trainer.recipe import DataRecipe, TrainerConfig, settings


@dataclass(frozen=True, kw_only=True)
class Flowers(DataRecipe):
    petals: int = 5
    trainer: TrainerConfig = settings(max_steps=7, global_batch_size=32)

    def task(self): ...
    def train_input(self, ctx): ...
    def eval_input(self, ctx): ...


def test_settings_are_the_defaults_of_flags_and_only_the_work_directory_is_required():
    flags = "--data-dir d --workdir w --petals 6 --seed 3"
    recipe, _, _ = parsed(Flowers, flags.split(), "flowers")
    assert (recipe.petals, recipe.data_dir, recipe.train_split) == (6, "d", "train")
    assert recipe.trainer == TrainerConfig(workdir="w", global_batch_size=32, max_steps=7, seed=3)


def test_the_help_of_a_recipe_without_a_docstring_omits_its_signature(capsys):
    with pytest.raises(SystemExit):
        parsed(Flowers, ["--help"], "python -m trainer flowers")
    printed = capsys.readouterr().out
    assert "--petals" in printed
    assert "Flowers(" not in printed


@dataclass(frozen=True, kw_only=True)
class Counted(Flowers):
    def tiny_records(self, split):
        return {"petals": np.arange(3 if split == "train" else 2)}


IN_W = settings(workdir="w")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: settings(max_step=7), "'max_step' is not a .* Did you mean 'max_steps'"),
        (lambda: Flowers(data_dir="d"), r"workdir is not given. Give trainer=settings\(workdir="),
        (lambda: Flowers(trainer=IN_W), "data_dir is not given"),
        (lambda: Flowers(data_dir="d", tiny=True, trainer=IN_W), "with tiny"),
        (
            lambda: Flowers(tiny=True, trainer=IN_W).check(),
            "Flowers has no records to use in place of split 'train' with --tiny. Give",
        ),
    ],
)
def test_a_recipe_that_lacks_or_repeats_something_is_refused(made, text):
    with pytest.raises(OptionError, match=text):
        made()


def test_tiny_takes_the_records_of_the_recipe_and_at_most_twenty_steps():
    recipe = Counted(tiny=True, trainer=settings(workdir="w", max_steps=700))
    recipe.check()
    assert (len(recipe.train_records), len(recipe.eval_records)) == (3, 2)
    assert recipe.data_name == "--tiny"
    assert recipe.trainer.max_steps == recipe.run.max_steps == 20
    assert Counted(tiny=True, trainer=settings(workdir="w", max_steps=7)).trainer.max_steps == 7


@pytest.mark.parametrize(
    ("mode", "report", "message"),
    [
        ("predict", "out.html", "mode=predict: only train and evaluate write a page. Leave it out"),
        ("evaluate", "{tmp_path}", "is a directory. Give the name of a file in it: .*/page.html"),
        ("train", "s3://bucket/out.html", "storage s3:// is not supported"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_evaluation(
    tmp_path, mode, report, message
):
    report = report.format(tmp_path=tmp_path)
    recipe = Counted(
        tiny=True, mode=mode, report=report, trainer=settings(workdir=str(tmp_path / "run"))
    )
    with pytest.raises(OptionError, match=message):
        recipe.check()
