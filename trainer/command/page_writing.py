"""The page that --report writes of an evaluation."""

import shlex
from collections.abc import Sequence
from functools import partial

from pipeline.describing.shown_records import show_records
from pipeline.pages.page import write_page
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from pipeline.tools.program import program
from trainer.checkpointing.listing import checkpoints_directory
from trainer.command.names import name_of
from trainer.history.segments import Command
from trainer.pages.evaluation import About, evaluation_page, joined
from trainer.recipe import DataRecipe, Recipe
from trainer.results import EvalResult, EvaluatedRecords

MODELS = {"params": "the parameters as trained", "ema": "the averaged parameters"}


def write_report(
    recipe: Recipe,
    command: Command | None,
    result: EvalResult,
    records: Sequence[EvaluatedRecords],
) -> None:
    """Writes the page of an evaluation; in a fast_dev_run only makes it. Raises StorageError. command: see `run`.

    records: what the evaluation passed to on_records."""
    page = evaluation_page(result, joined(records), _evaluated(recipe, command, result))
    if recipe.trainer.fast_dev_run:
        page.html()
        return
    write_page(str(recipe.report), page)
    say(Console(), f"evaluation page written to {recipe.report}")


def _evaluated(recipe: Recipe, command: Command | None, result: EvalResult) -> About:
    label_names, show = None, None
    facts = {
        "checkpoint": join(checkpoints_directory(recipe.trained_in), str(result.step)),
        "model": MODELS[recipe.trainer.evaluated_model],
    }
    if isinstance(recipe, DataRecipe):
        facts |= {"data": recipe.data_name, "split": recipe.eval_split}
        label_names = recipe.eval_records.labels
        # A recipe's input may wrap its records, or replace them: their numbers then mean something else.
        if result.fingerprint == recipe.eval_records.info.fingerprint:
            show = partial(show_records, recipe.eval_records, text_of=recipe.record_text)
    class_names, made_by = recipe.class_names().get("class"), _command_text(command)
    return About(name_of(type(recipe)), facts, class_names, label_names, show, made_by)


def _command_text(command: Command | None) -> str:
    """The command as the user gave it; "" for a recipe that a program runs."""
    return f"{program('trainer')} {shlex.join([command.recipe, *command.options])}" if command else ""
