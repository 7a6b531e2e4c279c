"""The flags of a recipe's command. Imports little: --help appears immediately."""

import argparse
import contextlib
import io
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import make_dataclass
from typing import Any

import tyro

from pipeline.errors import InfeedError, OptionError
from trainer.cluster.distributed import Devices, Distributed
from trainer.command.flag_help import end_of_help, join_lines
from trainer.recipe import Recipe

__all__ = ["parsed"]

EXIT_OF_TYRO = 2


def parsed(recipe: type[Recipe], options: Sequence[str], program: str) -> tuple[Recipe, Devices, Distributed]:
    """Instances with the values of the options.

    Raises InfeedError for a value that a dataclass refuses, and for unknown or malformed options; SystemExit for
    --help, after printing it."""
    recipe = _chosen(recipe, options)
    fields: list[Any] = [
        ("recipe", recipe),
        ("devices", Devices, Devices()),
        ("distributed", Distributed, Distributed()),
    ]
    kind = make_dataclass("Flags", fields)
    join_lines(kind)
    flags: Any = tyro.conf.OmitArgPrefixes[kind]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = tyro.cli(flags, args=options, prog=program, description=_description(recipe))
    except SystemExit as left:
        for cause in _causes(left):
            if isinstance(cause, InfeedError):
                raise cause from None  # tyro would print it in a box, folded into several lines
        if left.code == EXIT_OF_TYRO and (text := _one_line(said.getvalue(), program)):
            raise OptionError(text) from None
        print(said.getvalue(), file=sys.stderr, end="")  # of a recipe's own code, which may end the program, too
        if not left.code:
            print(end_of_help(program, recipe))
        raise
    return given.recipe, given.devices, given.distributed


def _chosen(recipe: type[Recipe], options: Sequence[str]) -> type[Recipe]:
    """The recipe with the defaults of --setting; tyro, which also parses this flag, refuses a value that is unknown."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--setting", nargs="?")
    given, _ = parser.parse_known_args(options)
    return recipe.settings_by_name().get(given.setting, recipe)


def _one_line(box: str, program: str) -> str:
    """What tyro prints in a box: the problem, then the flags that it describes, which are missing or similar.

    "" if there is no box."""
    lines = [line.strip("│| ") for line in box.splitlines()[1:]]  # the first is a title
    flags = ", ".join(line.split()[0].rstrip(",") for line in lines if line.startswith("--") and line.strip("-"))
    parts = [[*part] for is_rule, part in itertools.groupby(lines, lambda line: not line.strip("─-╰╯+")) if not is_rule]
    if not parts:
        return ""
    text = " ".join(parts[0]).rstrip(".")
    if text.startswith("Missing value"):
        text = text.replace("Expected 1 values", "Expected one value")
    elif text.startswith("Missing"):
        text = f"the following flags are required: {flags}"
    elif flags and text.startswith("Unrecognized"):
        text += f". Similar: {flags}"
    hint = ""
    if text.startswith("Unrecognized") and "epochs" in text:
        hint = " The length of a training is in steps: --max-steps. The log says how many an epoch has."
    return f"{text}.{hint} See {program} --help."


def _description(recipe: type) -> str:
    doc = vars(recipe).get("__doc__") or ""
    return "" if doc.startswith(f"{recipe.__name__}(") else doc  # what a dataclass without a docstring has


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
