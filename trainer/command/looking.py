"""--mode look: writes a page of training records as the model sees them."""

import jax

from pipeline.describing.records import ShownRecord, show_records
from pipeline.pages.page import write_page
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from trainer.command.page_input import PageInput, command_text, name_of
from trainer.history.segments import Command
from trainer.pages.look import LookedAt, look_page
from trainer.recipe import DataRecipe, Recipe
from trainer.results import Look
from trainer.trainer import Trainer

__all__ = ["write_look"]


def write_look(trainer: Trainer, recipe: Recipe, command: Command | None = None) -> None:
    """Writes the page on host 0; in a fast_dev_run only makes it. Raises StorageError. command: see `run`."""
    if jax.process_index() > 0:
        return
    pages, input_fn = recipe.pages, PageInput(recipe.train_input)
    look = trainer.look(input_fn, records=pages.look_records, draws=pages.look_draws)
    page = look_page(look, _about(recipe, command, look, input_fn))
    if recipe.trainer.fast_dev_run:
        page.html()
        say(Console(), "fast_dev_run: everything works. Nothing was written.")
        return
    path = pages.report or join(recipe.trainer.workdir, "look.html")
    write_page(path, page)
    say(Console(), f"page of what the model sees written to {path}")


def _about(recipe: Recipe, command: Command | None, look: Look, input_fn: PageInput) -> LookedAt:
    repeats = recipe.trainer.overfit_batches is not None
    given = {"text_of": recipe.record_text, "repeats": repeats, "made_by": command_text(command)}
    if not isinstance(recipe, DataRecipe):
        return LookedAt(name_of(recipe), **given)
    records, stored = recipe.train_records, list[ShownRecord]()
    if look.numbers is not None and input_fn.reads(records):
        stored = show_records(records, look.numbers, recipe.record_text)
    return LookedAt(name_of(recipe), stored, records.labels, **given)
