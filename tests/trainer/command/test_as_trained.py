"""What an evaluation takes from the history of its work directory, which may be someone else's."""

from dataclasses import dataclass

import numpy as np

from trainer.command.recorded import as_trained
from trainer.history.segments import Command, Start, append
from trainer.recipe import Recipe, settings


@dataclass(frozen=True, kw_only=True)
class Own(Recipe):
    """A recipe of a user's."""

    width: int = 1
    sizes: tuple[int, ...] = (1,)
    module: str = "mine"
    flip: bool = True

    def task(self):
        raise NotImplementedError

    def train_input(self, ctx):
        return [np.ones(1)]

    eval_input = train_input


def test_of_a_recipe_of_ones_own_only_numbers_are_taken_and_none_that_is_given(tmp_path):
    options = ["--width=3", "--sizes", "4", "5", "--module=theirs", f"--workdir={tmp_path}"]
    (tmp_path / "train").mkdir()
    append(
        str(tmp_path),
        Start(0, "2026-11-26T12:00:00+00:00", {}, None, {}, Command("own:Own", options, "."), {}, "1 cpu"),
    )
    recipe = Own(mode="evaluate", trainer=settings(workdir=str(tmp_path)))
    taken = as_trained(recipe, "own:Own", ["--workdir", str(tmp_path)])
    assert (taken.width, taken.sizes, taken.module) == (3, (4, 5), "mine")
    given = as_trained(recipe, "own:Own", ["--width=1"])
    assert (given.width, given.sizes) == (1, (4, 5))
    unflipped = as_trained(Own(mode="evaluate", flip=False, trainer=recipe.trainer), "own:Own", ["--no-flip"])
    assert (unflipped.width, unflipped.flip) == (3, False)
    assert as_trained(recipe, "other:Own", []) == recipe
