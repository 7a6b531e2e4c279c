"""--mode look: writes a page of training records as the model sees them."""

from typing import Any

import jax

from pipeline.describing.records import ShownRecord, show_records
from pipeline.pages.page import write_page
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from trainer.command.reporting import command_of, name_of
from trainer.inputs import InputContext
from trainer.pages.look import LookedAt, look_page
from trainer.recipe import DataRecipe, Recipe
from trainer.results import Look
from trainer.trainer import Trainer

__all__ = ["write_look"]


def write_look(trainer: Trainer, recipe: Recipe) -> None:
    """Writes the page on host 0; in a fast_dev_run only makes it. Raises StorageError."""
    if jax.process_index() > 0:
        return
    pages, fingerprints = recipe.pages, list[Any]()

    def input_fn(ctx: InputContext) -> Any:
        source = recipe.train_input(ctx)
        fingerprints.append(getattr(source, "fingerprint", None))
        return source

    look = trainer.look(input_fn, records=pages.look_records, draws=pages.look_draws)
    page = look_page(look, _about(recipe, look, fingerprints[0]))
    if recipe.trainer.fast_dev_run:
        page.html()
        say(Console(), "fast_dev_run: everything works. Nothing was written.")
        return
    path = pages.report or join(recipe.trainer.workdir, "look.html")
    write_page(path, page)
    say(Console(), f"the page of what the model sees is {path}")


def _about(recipe: Recipe, look: Look, fingerprint: Any) -> LookedAt:
    given = {"text_of": recipe.record_text, "made_by": command_of(recipe)}
    if not isinstance(recipe, DataRecipe):
        return LookedAt(name_of(recipe), **given)
    records, stored = recipe.train_records, list[ShownRecord]()
    # The numbers of other records than the recipe's mean something else.
    if look.numbers is not None and records.fingerprint == fingerprint:
        stored = show_records(records, look.numbers, recipe.record_text)
    return LookedAt(name_of(recipe), stored, records.labels, **given)
