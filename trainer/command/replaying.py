"""Replays steps of a run with the recipe, the options and the directory that its history names.

A work directory may be someone else's, and so may everything that its history names: no code there runs, and no file is
written, unless the user asks for its recipe."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.logs import logger
from trainer.checkpointing.contents import changes, versions
from trainer.command.loading import recipe_class
from trainer.command.names import is_ours
from trainer.command.recorded import not_run, recorded_recipe
from trainer.history.seen_records import SeenBatch, seen_batches
from trainer.history.segments import Command, History, Start, segment_of_all
from trainer.recipe import DataRecipe, Recipe
from trainer.results import ReplayedStep

if TYPE_CHECKING:
    from trainer.inputs import InputContext

log = logger("trainer")

TOLERANCE = 1e-3
"""Relative: how far the mean loss of a replay on other devices may be from that of the run. Rounding adds up."""


@dataclass(frozen=True)
class Replayed:
    """losses: float32 [rows] of a step's records, masked where their mean leaves them out. verdict: how their mean
    compares with the run's, in a clause."""

    losses: np.ndarray
    verdict: str


def replayed_losses(
    workdir: str,
    history: History,
    steps: range,
    reported: Mapping[int, float | None],
    data_dir: str | None = None,
    *,
    run_recipe: bool = False,
) -> Iterator[tuple[int, Replayed]]:
    """Yields (step, losses) of these steps. reported: the mean losses in metrics.jsonl. workdir, data_dir: absolute;
    data_dir is where the data are now, if they were moved. run_recipe: run code that the history names.

    Changes the current directory to that of the run: options, and a recipe of the user's own, are relative to it.
    Raises CheckpointError if the run cannot be replayed here: no checkpoint is left to begin with, it was not started
    with a recipe, or its data are others now; OptionError if the steps belong to several runs, or without run_recipe to
    a recipe that is not infeed's."""
    start = segment_of_all(history, steps, workdir).start
    recipe = _recipe(workdir, start, data_dir, run_recipe)
    from trainer.trainer import Trainer  # after the devices are chosen

    if changed := changes(start.versions, versions()):
        log.warning("the run used other versions, so the replay may differ: %s", ", ".join(changed))
    trainer = Trainer(recipe.task(), recipe.trainer, warm_start=recipe.warm_start)

    def input_fn(ctx: "InputContext") -> Any:
        # At step 0, a recipe may write to the work directory, which is not this process's.
        source = recipe.train_input(replace(ctx, start_step=max(1, ctx.start_step)))
        _check_data(source, start)
        return source

    made = trainer.replay(input_fn, step=steps[0], to=steps[-1])
    for step, seen in zip(made, seen_batches(history, steps, workdir), strict=True):
        _check_records(step, seen)
        losses = np.ma.array(step.losses, mask=~step.counted)
        yield step.step, Replayed(losses, verdict(step.loss, reported.get(step.step)))


def _recipe(workdir: str, start: Start, data_dir: str | None, run_recipe: bool) -> Recipe:
    """The recipe of a run, with its settings and this work directory."""
    command = start.command
    if command is None:
        raise CheckpointError(
            "the losses are not known: the run was started by a program of its own, not with a recipe. In that "
            "program, Trainer.replay computes them."
        )

    if not (run_recipe or is_ours(command.recipe)):
        raise OptionError(not_run(command, "--losses", "give --run-recipe"))
    _enter(command)
    recipe, devices = recorded_recipe(command, recipe_class(command.recipe), "train", workdir=workdir)
    devices.choose()
    devices.check()
    if isinstance(recipe, DataRecipe):
        trusted = recipe.trust_features if run_recipe else ()
        recipe = replace(recipe, data_dir=data_dir or recipe.data_dir, trust_features=trusted)
    return recipe


def _enter(command: Command) -> None:
    """Changes to the directory of a run, and makes it the last one on the path if its recipe may be there."""
    sys.path[:] = [str(Path(place).absolute()) for place in sys.path]  # "" would mean the directory of the run
    try:
        os.chdir(Path(command.directory))
    except (OSError, ValueError) as e:
        if not is_ours(command.recipe):
            raise CheckpointError(
                f"the losses are not known: the run was started in {command.directory}, which does not exist here, so "
                f"its recipe {command.recipe} cannot be loaded. Run the command on the machine of the training."
            ) from e
        log.warning("the run was started in %s, which does not exist here", command.directory)
    if not is_ours(command.recipe):
        sys.path.append(str(Path.cwd()))


def _check_data(source: Any, start: Start) -> None:
    given = getattr(getattr(source, "info", source), "provenance", None)
    if given and start.input and given["fingerprint"] != start.input["fingerprint"]:
        raise CheckpointError(
            f"the losses are not known: the data have the fingerprint {given['fingerprint']}; the run read "
            f"{start.input['fingerprint']}. Give --data-dir with the data that the run read."
        )


def _check_records(step: ReplayedStep, seen: SeenBatch) -> None:
    if step.record_ids is not None and not np.array_equal(step.record_ids, seen.record_ids):
        raise CheckpointError(
            f"the losses are not known: a replay of step {step.step} reads other records than the run did. Its recipe, "
            "or options that it takes from elsewhere, have changed."
        )


def verdict(loss: float, reported: float | None) -> str:
    """How the mean loss of a replayed step compares with the one that the run reported."""
    if reported is None:
        return f"mean loss {loss:.6g}; metrics.jsonl has none to compare it with"
    if np.float32(loss) == np.float32(reported) or (np.isnan(loss) and np.isnan(reported)):
        return f"mean loss {loss:.6g}, bit-identical to metrics.jsonl"
    apart = abs(loss - reported) / max(abs(reported), 1e-30)
    if apart <= TOLERANCE:
        how = f"a relative difference of {apart:.1g}, from rounding"
        return f"mean loss {loss:.6g}; {reported:.6g} in metrics.jsonl ({how})"
    return (
        f"mean loss {loss:.6g}, but {reported:.6g} in metrics.jsonl: this replay is not what the run computed. The "
        "recipe's code, the data, the devices or the versions differ"
    )
