"""--report: an evaluation that also writes a page about itself."""

from collections.abc import Callable, Sequence
from functools import partial

import jax

from pipeline.describing.records import ShownRecord, show_records
from pipeline.pages.page import write_page
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from trainer.checkpointing.listing import checkpoints_directory
from trainer.command.page_input import PageInput, command_text, name_of
from trainer.history.segments import Command
from trainer.pages.collected import Collected
from trainer.pages.evaluation import About, evaluation_page
from trainer.recipe import DataRecipe, Recipe
from trainer.results import EvalResult, EvaluatedRecords

__all__ = ["Report"]

MODELS = {"params": "the parameters as trained", "ema": "the averaged parameters"}


class Report:
    """What an evaluation needs for its page: the input_fn and on_records to evaluate with; then `write`.

    command: see `run`."""

    def __init__(self, recipe: Recipe, command: Command | None = None) -> None:
        self.input_fn = PageInput(recipe.eval_input)
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
            recipe=name_of(recipe),
            facts=facts,
            class_names=recipe.class_names().get("class"),
            label_names=records.labels if records else None,
            show=self._show(),
            made_by=command_text(self._command),
        )

    def _show(self) -> Callable[[Sequence[int]], Sequence[ShownRecord]] | None:
        """None for an input of other records than the recipe's."""
        recipe = self._recipe
        if not isinstance(recipe, DataRecipe) or not self.input_fn.reads(recipe.eval_records):
            return None
        return partial(show_records, recipe.eval_records, text_of=recipe.record_text)
