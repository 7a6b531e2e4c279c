"""Finds the class of a recipe by its name on the command line, and states what is wrong with one that cannot run."""

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import OptionError, did_you_mean, keeps_all_frames
from pipeline.tools.program import program
from trainer.cluster.distributed import Devices, Distributed
from trainer.command.names import RECIPES, place_of
from trainer.config import TrainerConfig
from trainer.recipe import DataRecipe, Recipe
from trainer.settings import Pages
from trainer.user_code import described, source_lines

LIBRARIES = ("flax", "jax", "jaxlib", "optax", "orbax", "scipy", "tensorboard", "tensorflow", "tyro")
METHODS = {"task": "task(self)", "train_input": "train_input(self, ctx)", "eval_input": "eval_input(self, ctx)"}
DECORATOR = "Put @dataclass(frozen=True, kw_only=True) above the class."
HOW = "A recipe is a dataclass that subclasses Recipe or DataRecipe of trainer.recipe; trainer/RECIPES.md has examples."


def recipe_class(name: str) -> type[Recipe]:
    """The class that `name` names: a recipe of infeed, "module:Class", or "module" for its Config.

    Raises OptionError, which states what is missing; ModuleNotFoundError for a library that training needs."""
    module_name, _, class_name = place_of(name).partition(":")
    class_name = class_name or "Config"
    _check_name(module_name, class_name)
    with _importing(module_name):
        module = importlib.import_module(module_name) if _exists(module_name) else None
    if module is None:
        known = f"there is no recipe {name!r}.{did_you_mean(name, RECIPES)} Nor is there a module of that name"
        raise OptionError(
            f"{f'there is no module {module_name!r}' if ':' in name else known}. For a recipe of your own, change to "
            f"the directory with {module_name.replace('.', '/')}.py, or add that directory to PYTHONPATH."
        )
    found = getattr(module, class_name, None)
    if found is None:
        raise OptionError(_without(module, class_name))
    _check_class(found, f"{module_name}:{class_name}")
    return found


def needed_by_training(error: ModuleNotFoundError) -> bool:
    """Whether the missing module belongs to a library that a recipe cannot do without."""
    return (error.name or "").partition(".")[0] in LIBRARIES


def _check_name(module_name: str, class_name: str) -> None:
    if module_name.endswith(".py") or "/" in module_name:
        file = Path(module_name)
        raise OptionError(
            f"{module_name} is a file. Give the name of its module: {program('trainer')} {file.stem}:{class_name}, in "
            f"the directory {file.parent.absolute()}."
        )
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise OptionError(
            f"{module_name!r} is not the name of a recipe. Give it first, before all flags: {program('trainer')} "
            f"digits --data-dir ..., or {program('trainer')} my_module:Config ..."
        )


def _exists(module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except ModuleNotFoundError as error:  # a package around it; or one that this package imports
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            return False
        raise


@contextmanager
def _importing(module_name: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise OptionError(
            f"{module_name} ended the program while it was imported, with exit code {error.code}. Put what it does as "
            "a program under: if __name__ == '__main__':"
        ) from error
    except Exception as error:
        lines = source_lines(error)
        needed = isinstance(error, ModuleNotFoundError) and (needed_by_training(error) or "pip install" in str(error))
        if needed or not lines or keeps_all_frames():
            raise
        hint = f". {DECORATOR}" if "non-frozen dataclass" in str(error) else ""
        raise OptionError(f"{module_name} cannot be imported: {described(error)}{hint}", *lines) from error


def _without(module: ModuleType, class_name: str) -> str:
    here = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    missing = f"{module.__name__} has no class {class_name!r}."
    if names := [each.__name__ for each in here if issubclass(each, Recipe)]:
        nearest = did_you_mean(class_name, names).replace("Known", "Its recipes")
        return f"{missing}{nearest} Run one: {program('trainer')} {module.__name__}:{names[0]}"
    others = [each.__name__ for each in here if is_dataclass(each)]
    told = f" Its dataclasses are not recipes: {', '.join(others)}." if others else ""
    return f"{missing}{told} {HOW}"


def _check_class(found: Any, where: str) -> None:
    missing = [signature for name, signature in METHODS.items() if not callable(getattr(found, name, None))]
    if not inspect.isclass(found) or not issubclass(found, Recipe):
        what = f"a {type(found).__name__}" if not inspect.isclass(found) else "a class"
        without = f" It also lacks the methods {', '.join(missing)}." if missing else ""
        raise OptionError(f"{where} is {what}, but not a recipe. {HOW}{without}")
    if inspect.get_annotations(found) and "__dataclass_fields__" not in vars(found):
        raise OptionError(f"{where} is not a dataclass. {DECORATOR}")
    if missing := [METHODS[name] for name in METHODS if name in found.__abstractmethods__]:
        raise OptionError(f"{where} lacks the methods {', '.join(missing)}. trainer/RECIPES.md has examples.")
    inherited = fields(DataRecipe if issubclass(found, DataRecipe) else Recipe)
    own = {each.name for each in fields(found)} - {each.name for each in inherited}
    for settings in (TrainerConfig, Devices, Distributed, Pages):
        if taken := own & {each.name for each in fields(settings)}:
            name = min(taken)
            instead = f"use self.trainer.{name}, or rename it" if settings is TrainerConfig else "rename it"
            raise OptionError(
                f"{where} has a field {name!r}, but --{name.replace('_', '-')} exists already: {instead}."
            )
