"""Replays steps of a run with the recipe, the options and the directory that its history names."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.storage.schemes import is_remote
from pipeline.storage.storage import join
from pipeline.tools.program import program
from trainer.checkpointing.contents import changes, versions
from trainer.command.flags import parsed
from trainer.command.loading import recipe_class
from trainer.events.metrics_lines import metrics_lines
from trainer.history.seen import start_of
from trainer.history.segments import History, Start
from trainer.recipe import DataRecipe, Recipe

if TYPE_CHECKING:
    from trainer.inputs import InputContext

__all__ = ["Replayed", "replayed_losses"]

log = logger("trainer")

TOLERANCE = 1e-3
"""Relative: how far the mean loss of a replay on other devices may be from that of the run. Rounding adds up."""


@dataclass(frozen=True)
class Replayed:
    """losses: float32 [rows] of a step's records. verdict: how their mean compares with the run's, in a sentence."""

    losses: np.ndarray
    verdict: str


def replayed_losses(
    workdir: str, history: History, steps: range, recipes: Mapping[str, str], data_dir: str | None = None
) -> Iterator[tuple[int, Replayed]]:
    """Yields (step, losses) of these steps. recipes: name -> class of those of ours. data_dir: where the data are
    now, as an absolute path.

    Raises CheckpointError if no checkpoint is left to begin with; OptionError if the steps belong to several runs, or
    if the run was not started with a recipe."""
    start = start_of(history, steps[0], workdir)
    if start_of(history, steps[-1], workdir) is not start:
        later = next(each for each in steps if start_of(history, each, workdir) is not start)
        raise OptionError(
            f"steps {steps[0]} to {steps[-1]} belong to several runs: one started after step {later - 1}. Replay "
            f"--step={steps[0]} --to={later - 1} and --step={later} --to={steps[-1]}."
        )
    recipe = _recipe(workdir, start, recipes, data_dir)
    from trainer.trainer import Trainer  # after the devices are chosen

    if changed := changes(start.versions, versions()):
        log.warning("the run used other versions, so the replay may differ: %s", ", ".join(changed))
    reported = {step: values.get("loss") for step, values in metrics_lines(join(workdir, "train"), steps)}
    trainer = Trainer(recipe.task(), recipe.trainer, warm_start=recipe.warm_start)

    def input_fn(ctx: "InputContext") -> Any:
        # At step 0, a recipe may write to the work directory, which is not this process's.
        return recipe.train_input(replace(ctx, start_step=max(1, ctx.start_step)))

    for made in trainer.replay(input_fn, step=steps[0], to=steps[-1], start=start.step):
        yield made.step, Replayed(made.losses, _verdict(made.step, made.loss, reported.get(made.step)))


def _recipe(workdir: str, start: Start, recipes: Mapping[str, str], data_dir: str | None) -> Recipe:
    """The recipe of a run, with its settings and this work directory."""
    if start.command is None:
        raise OptionError(
            "the run was started by a program of its own, not with a recipe. In that program, Trainer.replay gives the "
            "losses."
        )
    from trainer.cluster.devices import check, choose

    workdir = workdir if is_remote(workdir) else str(Path(workdir).absolute())
    command = start.command
    if not Path(command.directory).is_dir():
        raise OptionError(f"the run was started in {command.directory}, which does not exist here.")
    os.chdir(command.directory)  # paths in the options, and a recipe of the user's own, are relative to it
    sys.path.insert(0, command.directory)
    kind = recipe_class(command.recipe, recipes)
    recipe, devices, _ = parsed(kind, command.options, f"{program('trainer')} {command.recipe}")
    choose(devices)
    check(devices)
    settings = replace(recipe.trainer, workdir=workdir, restore_step=None, profile_steps=None)
    recipe = replace(recipe, trainer=settings, mode="train")
    if data_dir is not None and isinstance(recipe, DataRecipe):
        recipe = replace(recipe, data_dir=data_dir)
    return recipe


def _verdict(step: int, loss: float, reported: float | None) -> str:
    if reported is None:
        return f"step {step}: mean loss {loss:.6g}; metrics.jsonl has none to compare it with"
    if np.float32(loss) == np.float32(reported) or (np.isnan(loss) and np.isnan(reported)):
        return f"step {step}: mean loss {loss:.6g}, bit by bit that of metrics.jsonl"
    apart = abs(loss - reported) / max(abs(reported), 1e-30)
    if apart <= TOLERANCE:
        return f"step {step}: mean loss {loss:.6g}, {reported:.6g} in metrics.jsonl ({apart:.1g} apart, from rounding)"
    return (
        f"step {step}: mean loss {loss:.6g}, but {reported:.6g} in metrics.jsonl: this replay is not what the run "
        "computed. The recipe's code, the data, the devices or the versions differ."
    )
