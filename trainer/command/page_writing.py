"""The pages that a recipe's commands write: --report of an evaluation, and --mode look of what the model sees."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from pipeline.describing.shown_records import ShownRecord, show_records
from pipeline.pages.page import write_page
from pipeline.sources.records import Records
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from pipeline.tools.program import program
from trainer.checkpointing.listing import checkpoints_directory
from trainer.command.names import name_of
from trainer.history.segments import Command
from trainer.inputs import InputContext
from trainer.pages.evaluation import About, Collected, evaluation_page
from trainer.pages.look import LookedAt, look_page
from trainer.recipe import DataRecipe, Recipe
from trainer.results import EvalResult, EvaluatedRecords, Look
from trainer.trainer import Trainer

__all__ = ["Report", "write_look"]

MODELS = {"params": "the parameters as trained", "ema": "the averaged parameters"}


class _PageInput:
    """An input_fn that remembers which data its input read, so that a page shows no records of other data.

    A recipe's input may wrap its records, or replace them: their numbers then mean something else."""

    def __init__(self, input_fn: Callable[[InputContext], Any]) -> None:
        self._input_fn, self._fingerprint = input_fn, None

    def __call__(self, ctx: InputContext) -> Any:
        """What input_fn returns."""
        source = self._input_fn(ctx)
        self._fingerprint = getattr(getattr(source, "info", source), "fingerprint", None)
        return source

    def reads(self, records: Records) -> bool:
        """Whether the numbers of the input are those of these records."""
        return records.info.fingerprint == self._fingerprint


class Report:
    """What an evaluation needs for its page: the input_fn and on_records to evaluate with; then `write`.

    command: see `run`."""

    def __init__(self, recipe: Recipe, command: Command | None) -> None:
        self.input_fn = _PageInput(recipe.eval_input)
        self._recipe, self._command, self._collected = recipe, command, Collected()

    def on_records(self, records: EvaluatedRecords) -> None:
        """Collects them on host 0."""
        if jax.process_index() == 0:
            self._collected.add(records)

    def write(self, result: EvalResult) -> None:
        """Writes the page, on host 0; in a fast_dev_run only makes it. Raises StorageError."""
        recipe, path = self._recipe, self._recipe.pages.report
        if jax.process_index() > 0 or path is None:
            return
        page = evaluation_page(result, self._collected.all(), self._about(result))
        if recipe.trainer.fast_dev_run:
            page.html()
            return
        write_page(path, page)
        say(Console(), f"evaluation page written to {path}")

    def _about(self, result: EvalResult) -> About:
        recipe = self._recipe
        records = recipe.eval_records if isinstance(recipe, DataRecipe) else None
        facts = {"checkpoint": join(checkpoints_directory(recipe.trained_in), str(result.step))}
        facts["model"] = MODELS[recipe.trainer.evaluated_models[0]]
        if isinstance(recipe, DataRecipe) and records:
            facts |= {"data": recipe.data_name, "split": recipe.eval_split}
        return About(
            recipe=name_of(type(recipe)),
            facts=facts,
            class_names=recipe.class_names().get("class"),
            label_names=records.info.labels if records else None,
            show=self._show(),
            made_by=_command_text(self._command),
        )

    def _show(self) -> Callable[[Sequence[int]], Sequence[ShownRecord]] | None:
        """None for an input of other records than the recipe's."""
        recipe = self._recipe
        if not isinstance(recipe, DataRecipe) or not self.input_fn.reads(recipe.eval_records):
            return None
        return partial(show_records, recipe.eval_records, text_of=recipe.record_text)


def write_look(trainer: Trainer, recipe: Recipe, command: Command | None) -> None:
    """Writes the page on host 0; in a fast_dev_run only makes it. Raises StorageError. command: see `run`."""
    if jax.process_index() > 0:
        return
    pages, input_fn = recipe.pages, _PageInput(recipe.train_input)
    look = trainer.look(input_fn, records=pages.look_records, draws=pages.look_draws)
    page = look_page(look, _looked_at(recipe, command, look, input_fn))
    if recipe.trainer.fast_dev_run:
        page.html()
        say(Console(), "fast_dev_run: everything works. Nothing was written.")
        return
    path = pages.report or join(recipe.trainer.workdir, "look.html")
    write_page(path, page)
    say(Console(), f"page of what the model sees written to {path}")


def _looked_at(recipe: Recipe, command: Command | None, look: Look, input_fn: _PageInput) -> LookedAt:
    repeats = recipe.trainer.overfit_batches is not None
    given = {"text_of": recipe.record_text, "repeats": repeats, "made_by": _command_text(command)}
    if not isinstance(recipe, DataRecipe):
        return LookedAt(name_of(type(recipe)), **given)
    records, stored = recipe.train_records, list[ShownRecord]()
    if look.numbers is not None and input_fn.reads(records):
        stored = show_records(records, look.numbers, recipe.record_text)
    return LookedAt(name_of(type(recipe)), stored, records.info.labels, **given)


def _command_text(command: Command | None) -> str:
    """The command as the user gave it; "" for a recipe that a program runs."""
    return f"{program('trainer')} {shlex.join([command.recipe, *command.options])}" if command else ""
