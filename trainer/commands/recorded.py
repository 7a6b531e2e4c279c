"""The recipe of a run, as the history of its work directory names it: for `load` and `infeed
predict`; and for evaluations, whose model is the training's.

A work directory may be someone else's, and so may everything that its history names: no code there
runs unless the user asks for its recipe, and no data are needed where the run kept a description of
them."""

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from pipeline.console.commands import program
from pipeline.errors import CheckpointError, InfeedError, OptionError
from pipeline.logs import logger
from pipeline.user_code import ShortErrors
from trainer.checkpointing.kept_data import kept, records_like
from trainer.checkpointing.listing import check_checkpoint
from trainer.commands import is_ours
from trainer.commands.loading import HELP, parsed, recipe_class
from trainer.optimizers.config import OptimizerConfig
from trainer.recipe import DataRecipe, Recipe
from trainer.reports.segments import Invocation, read_history

if TYPE_CHECKING:
    from trainer.checkpointing.listing import WhichStep
    from trainer.loop.loaded_model import LoadedModel
    from trainer.task import Task

log = logger("trainer")

ONE_DEVICE: Mapping[str, Any] = {
    **dict.fromkeys(("eval_batch_size", "predict_batch_size", "fast_dev_run", "mesh")),
    **dict.fromkeys(("global_batch_size", "accumulate"), 1),
}
"""Settings of the TrainerConfig with which any model fits a single device."""


def _recorded_recipe(command: Invocation, kind: type[Recipe], mode: str, **settings: Any) -> Recipe:
    """The recipe of the class `kind` with the options of a run.

    settings: of the TrainerConfig, in place of those of the run."""
    if not HELP.isdisjoint(command.options):
        raise CheckpointError(
            f"the history is damaged: {shlex.join(command.options)} prints help and trains no "
            "model."
        )
    # tyro writes a file if its first option is --tyro-write-completion, so the first one is ours.
    recipe, _, _ = parsed(
        kind,
        ["--mode=train", *command.options, f"--mode={mode}"],
        f"{program('trainer')} {command.recipe}",
    )
    trainer = replace(
        recipe.trainer,
        restore_step=None,
        profile_steps=None,
        compilation_cache_dir=None,  # compiled programs are code, too, and written
        input_workers=0,
        **settings,
    )
    return replace(recipe, checkpoint_path=None, trainer=trainer)


def as_trained(recipe: Recipe, name: str, options: Sequence[str]) -> tuple[Recipe, Sequence[str]]:
    """The recipe of this name with values for what `options` leave out, and the options with them.

    A new run takes what the recipe finds in files with the weights; a run that resumes keeps its
    own. Both record it as options, so that nothing needs these files later. Evaluations take all
    options of the training, because other sizes may silently load a different model. Only the
    recipe's own fields count: the others say which data are evaluated, and how. Of a recipe that is
    not infeed's, only numbers and its found_fields are taken: another text may name a file or code,
    and the history may be anyone's. The log says what was taken, and which options of a resumed run
    have changed."""
    then = dict[str, Any]()
    try:
        command = read_history(recipe.trained_in).command
        if command and command.recipe == name and not recipe.trainer.fast_dev_run:
            then = _own(_recorded_recipe(command, type(recipe), recipe.mode))
        begins = recipe.begins
    except InfeedError as error:
        log.warning("the options of the run are not known: %s", str(error))
        return recipe, options
    origin, values = "as in the run", then
    if begins:
        origin = "found with the weights"
        with contextlib.suppress(InfeedError):  # its check() raises it, where other hosts hear
            values = recipe.found()
    flags = {
        option.partition("=")[0].lstrip("-").replace("-", "_")
        for option in options
        if option.startswith("--")
    }
    flags |= {flag.removeprefix("no_") for flag in flags}
    trains = recipe.mode == "train"
    kept = recipe.found_fields
    if not trains:
        kept = [key for key in then if key in kept or is_ours(name) or _names_no_code(then[key])]
    missing = {
        key: values[key]
        for key in kept
        if key in values and key not in flags and values[key] != getattr(recipe, key)
    }
    if shown := [f"{key} {value}" for key, value in missing.items() if not is_dataclass(value)]:
        log.info("%s: %s", origin, ", ".join(shown))
    recipe = replace(recipe, **missing)
    if not trains:
        return recipe, options
    changed = {key: value for key, value in _own(recipe).items() if value != then.get(key, value)}
    if changed:
        log.warning(
            "other options than in the run before: %s", ", ".join(_differences(then, changed))
        )
    return recipe, [*options, *(f"--{key}={value}" for key, value in missing.items())]


def _names_no_code(value: Any) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return all(isinstance(each, int | float | OptimizerConfig) for each in values)


def _own(recipe: Recipe) -> dict[str, Any]:
    others = {field.name for field in fields(DataRecipe)}
    return {
        field.name: getattr(recipe, field.name)
        for field in fields(recipe)
        if field.name not in others
    }


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key, value in now.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield from _differences(asdict(then[key]), asdict(value))
        elif value != then[key]:
            yield f"{key} {then[key]} -> {value}"


def recipe_without_data(
    workdir: str, trained: Recipe | type[Recipe] | None, **settings: Any
) -> Recipe:
    """The recipe that trained in a work directory, whose splits are one blank record like those
    that it read.

    trained: the recipe, or its class, if it is not one of infeed's. settings: of the TrainerConfig.
    Raises CheckpointError for a run without a recipe; OptionError for a recipe that is not
    infeed's, unless it is given."""
    if isinstance(trained, Recipe):
        recipe = replace(
            trained, mode="predict", trainer=replace(trained.trainer, workdir=workdir, **settings)
        )
    else:
        command = read_history(workdir).command
        if command is None:
            raise CheckpointError(
                f"{workdir} does not tell which recipe trained its model: a program of its own "
                "did. In Python, load takes that program's task as task=."
            )
        if trained is None and not is_ours(command.recipe):
            raise OptionError(_not_run(command))
        kind = trained or recipe_class(command.recipe)
        recipe = _recorded_recipe(command, kind, "predict", workdir=workdir, **settings)
        if isinstance(recipe, DataRecipe):
            recipe = replace(recipe, trust_features=())
    if isinstance(recipe, DataRecipe) and not recipe.tiny and (description := kept(workdir)):
        recipe = replace(recipe, data_dir=workdir).on(records_like(description, workdir))
    return recipe


def _not_run(command: Invocation) -> str:
    """Why a recipe of the user's own was not imported. Finds its file without importing a package
    around it."""
    module = command.recipe.partition(":")[0]
    places: Sequence[str] | None = [*sys.path, command.directory]
    file = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places) if places else None
        file, places = (spec.origin, spec.submodule_search_locations) if spec else (None, None)
    return (
        f"the recipe {command.recipe} of this run is not infeed's: this would import {module} from "
        f"{file or f'{command.directory}, where it is not'} and run its code. If you trust it, "
        f"give the recipe: its class, or {command.recipe} as --recipe."
    )


def load(
    workdir: str,
    step: "WhichStep | None" = None,
    *,
    recipe: Recipe | type[Recipe] | None = None,
    task: "Task | None" = None,
) -> "LoadedModel":
    """The model that was trained in a work directory, on one device, ready to be called on arrays.

    workdir: local, or in a bucket.
    step: of the checkpoint; "best": that of keep_best; default: the newest.
    recipe: the recipe of the training, or its class, whose options are then those of the training;
        only infeed's own are found without, as what a work directory names may be anyone's code.
    task: of a run without a recipe.

    Needs no data: the training has kept a description of them (description.json). Raises
    CheckpointError if there is no such checkpoint, or its arrays are not those of the recipe's
    model; OptionError if the recipe has to be given."""
    import jax  # takes a second, which the other functions do without

    from trainer.loop.job import Job
    from trainer.loop.loaded_model import loaded, run_without_recipe
    from trainer.mesh.batch_spec import BatchAxes
    from trainer.mesh.placement import Placement

    check_checkpoint(workdir, required=True)
    trained = None
    with ShortErrors():
        if task is None:
            trained = recipe_without_data(workdir, recipe, **ONE_DEVICE)
            task = trained.task()
            config = trained.trainer
            input_fn = trained.eval_input
        else:
            config, input_fn = run_without_recipe(workdir)
        placement = Placement.of(jax.local_devices()[:1], axes=BatchAxes(config.batch_axis))
        return loaded(Job(task, config, placement), input_fn, step, trained)
