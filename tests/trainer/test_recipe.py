"""The base classes of recipes: their defaults, and what they refuse from Python."""

from dataclasses import dataclass

import numpy as np
import pytest

from pipeline.errors import OptionError
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
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
    recipe, _, _ = parsed(
        Flowers, ["--data-dir", "d", "--workdir", "w", "--petals", "6", "--seed", "3"], "flowers"
    )
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


def test_tiny_takes_the_records_of_the_recipe_and_at_most_twenty_steps():
    recipe = Counted(tiny=True, trainer=settings(workdir="w", max_steps=700))
    recipe.check()
    assert (len(recipe.train_records), len(recipe.eval_records), recipe.data_name) == (
        3,
        2,
        "--tiny",
    )
    assert recipe.trainer.max_steps == recipe.run.max_steps == 20
    assert Counted(tiny=True, trainer=settings(workdir="w", max_steps=7)).trainer.max_steps == 7


def test_several_directories_are_read_as_one_dataset(tmp_path):
    schema = Schema("flowers", {"petals": Feature("int64")})
    for name, petals in (("a", [5, 6]), ("b", [7])):
        shard = b"".join(frame(encode_example(schema, {"petals": each})) for each in petals)
        (tmp_path / name).mkdir()
        for split in ("train", "validation"):
            (tmp_path / name / f"{split}-00000-of-00001.tfrecord").write_bytes(shard)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    recipe, _, _ = parsed(Flowers, ["--data-dir", a, b, f"--workdir={tmp_path}/w"], "flowers")
    recipe.check()
    for records in (recipe.train_records, recipe.eval_records):
        assert [each["petals"] for each in records.examples()] == [5, 6, 7]
    assert recipe.data_name == f"{a} + {b}"
    with pytest.raises(OptionError, match=f"workdir={b}/ is a data_dir. Give another directory"):
        Flowers(data_dir=(a, b), trainer=settings(workdir=f"{b}/", max_steps=1)).check()


def checked(kind, **fields):
    kind(tiny=True, trainer=settings(workdir="w"), **fields).check()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: settings(max_step=7), "'max_step' is not a setting of TrainerConfig. Did you mean 'max_steps'"),
        (lambda: Flowers(data_dir="d"), r"workdir is not given. Give trainer=settings\(workdir=...\)"),
        (lambda: Flowers(trainer=settings(workdir="w")), "data_dir is not given"),
        (lambda: checked(Flowers, data_dir="d"), "with tiny"),
        (lambda: checked(Flowers), "Flowers has no records to use in place of split 'train' with --tiny. Give"),
        (lambda: checked(Counted, mode="predict", report="out.html"), "'out.html' with mode=predict: only train and evaluate write a page. Leave it out"),
        (lambda: checked(Counted, mode="evaluate", report="/"), "is a directory. Give the name of a file in it: .*/page.html"),
        (lambda: Counted(tiny=True, trainer=settings(workdir="w"), patience=2), "patience=2 counts evaluations during the training. Give eval_every_steps"),
        (lambda: checked(Counted, report="az://bucket/out.html"), "storage az:// is not supported"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_recipe_made_in_python_is_one_error(call, text):
    with pytest.raises(OptionError, match=text):
        call()


@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_a_training_that_may_end_early_keeps_its_best_checkpoint(metric):
    options = settings(workdir="w", keep_best=metric)
    recipe = Counted(tiny=True, trainer=options, patience=2, eval_every_steps=4)
    assert recipe.trainer.keep_best == (metric or "loss")
