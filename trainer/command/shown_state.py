"""What --show-state prints: the arrays of the training's state, and how the optimizer treats each parameter."""

import math

import jax
from rich.table import Table

from pipeline.sizes import format_bytes
from pipeline.tools.command import Console, say
from trainer.optimizers.build import ParameterGroup, groups_of
from trainer.optimizers.config import OptimizerConfig
from trainer.recipe import Recipe
from trainer.trainer import Trainer

__all__ = ["show_state"]

PARAMS = "variables/params/"
WIDTH = 200  # names of arrays are long, and a line that wraps cannot be searched


def show_state(trainer: Trainer, recipe: Recipe) -> None:
    """Prints a table on host 0. Opens the training's input and computes nothing."""
    arrays = trainer.state_arrays(recipe.train_input)
    params = {name.removeprefix(PARAMS): leaf for name, leaf in arrays.items() if name.startswith(PARAMS)}
    treated = _treated(recipe, params)
    table = Table("array", "dtype", "shape", "split", "learning rate", "weight decay", box=None, pad_edge=False)
    for name, leaf in arrays.items():
        spec = getattr(leaf.sharding, "spec", ())
        split = ", ".join(map(str, spec)) if any(spec) else ""
        table.add_row(name, str(leaf.dtype), str(list(leaf.shape)), split, *treated.get(name, ("", "")))
    if jax.process_index() > 0:
        return
    console = Console(width=WIDTH)
    console.print(table)
    count = sum(math.prod(leaf.shape) for leaf in params.values())
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in arrays.values())
    say(console, f"{count:,} parameters in {len(params)} arrays; the state takes {format_bytes(size)}")


def _treated(recipe: Recipe, params: dict[str, jax.ShapeDtypeStruct]) -> dict[str, tuple[str, str]]:
    """Learning rate and weight decay by the name of the array, if the recipe has its optimizer from flags."""
    config = getattr(recipe, "optimizer", None)
    if not isinstance(config, OptimizerConfig):
        return {}
    groups = groups_of(config, {name: leaf.shape for name, leaf in params.items()})
    return {f"{PARAMS}{name}": _told(config, group) for name, group in groups.items()}


def _told(config: OptimizerConfig, group: ParameterGroup) -> tuple[str, str]:
    if not group.rate:
        return "frozen", ""
    return f"x {group.rate:g}", f"{config.weight_decay:g}" if group.decays else ""
