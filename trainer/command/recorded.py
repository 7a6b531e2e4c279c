"""The recipe of a run, as the history of its work directory names it: for replays, `load` and `infeed predict`.

A work directory may be someone else's, and so may everything that its history names: no code there runs unless the user
asks for its recipe, and no data are needed where the run kept a description of them."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from typing import Any, Literal

from pipeline.errors import CheckpointError, OptionError
from pipeline.tools.program import program
from trainer.cluster.distributed import Devices
from trainer.command.flags import HELP, parsed
from trainer.command.loading import recipe_class
from trainer.command.names import is_ours
from trainer.history.segments import Command, read_history
from trainer.kept_data import kept_data
from trainer.recipe import DataRecipe, Recipe

ONE_DEVICE: Mapping[str, Any] = {
    **dict.fromkeys(("eval_batch_size", "predict_batch_size", "fast_dev_run")),
    **dict.fromkeys(("global_batch_size", "model_parallelism", "accumulate"), 1),
}
"""Settings of the TrainerConfig with which any model fits a single device."""


def recorded_recipe(
    command: Command, kind: type[Recipe], mode: Literal["train", "predict"], **settings: Any
) -> tuple[Recipe, Devices]:
    """The recipe of the class `kind` with the options of a run, and the devices that they choose.

    settings: of the TrainerConfig, in place of those of the run."""
    if not HELP.isdisjoint(command.options):
        raise CheckpointError(f"the history is damaged: {shlex.join(command.options)} prints help and trains no model.")
    # tyro writes a file if its first option is --tyro-write-completion, so the first one is ours.
    recipe, devices, _ = parsed(kind, ["--mode=train", *command.options], f"{program('trainer')} {command.recipe}")
    # A cache of compiled programs is code, too, and written.
    others = {"restore_step": None, "profile_steps": None, "compilation_cache_dir": None, "input_workers": 0}
    trainer = replace(recipe.trainer, **others, **settings)
    return replace(recipe, mode=mode, checkpoint_path=None, trainer=trainer), devices


def recipe_without_data(workdir: str, given: Recipe | type[Recipe] | None = None, **settings: Any) -> Recipe:
    """The recipe that trained in a work directory, whose splits are one blank record like those that it read.

    given: the recipe, or its class, if it is not one of infeed's. settings: of the TrainerConfig.
    Raises CheckpointError for a run without a recipe; OptionError for a recipe that is not infeed's, unless given."""
    if isinstance(given, Recipe):
        recipe = replace(given, mode="predict", trainer=replace(given.trainer, workdir=workdir, **settings))
    else:
        command = next((start.command for start in reversed(read_history(workdir).starts)), None)
        if command is None:
            raise CheckpointError(
                f"{workdir} does not tell which recipe trained its model: a program of its own did. In Python, "
                "trainer.trainer.load takes the recipe, with its options, as recipe=."
            )
        if given is None and not is_ours(command.recipe):
            raise OptionError(not_run(command, "this", f"give the recipe: its class, or {command.recipe} as --recipe"))
        kind = given or recipe_class(command.recipe)
        recipe, _ = recorded_recipe(command, kind, "predict", workdir=workdir, **settings)
        if isinstance(recipe, DataRecipe):
            recipe = replace(recipe, trust_features=())
    if isinstance(recipe, DataRecipe) and not recipe.tiny and (kept := kept_data(workdir)):
        recipe = replace(recipe, data_dir=workdir).on(kept.records(workdir))
    return recipe


def not_run(command: Command, what: str, remedy: str) -> str:
    """Why a recipe of the user's own was not imported. Finds its file without importing a package around it."""
    module = command.recipe.partition(":")[0]
    places: Sequence[str] | None = [*sys.path, command.directory]
    file = None
    for part in module.split("."):
        found = PathFinder.find_spec(part, places) if places else None
        file, places = (found.origin, found.submodule_search_locations) if found else (None, None)
    return (
        f"the recipe {command.recipe} of this run is not infeed's: {what} would import {module} from "
        f"{file or f'{command.directory}, where it is not'} and run its code. If you trust it, {remedy}."
    )
