"""The flags of a recipe's command, and their help: --help shows those that people use most, in groups, --help-all all.

Imports little: --help appears immediately."""

import argparse
import contextlib
import io
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, get_type_hints

import tyro

from pipeline.errors import InfeedError, OptionError
from pipeline.tools.program import help_end
from trainer.cluster.distributed import Devices, Distributed
from trainer.recipe import DataRecipe, Recipe

EXIT_OF_TYRO = 2
HELP = frozenset({"-h", "--help", "--help-all", "--help_all"})
TRY, TRAIN = "--workdir=model --fast-dev-run=1", "--workdir=model --max-steps=20"
WITH_DATA, WITHOUT_DATA = f"--data-dir=shards {TRY}", "--tiny --workdir=model"
OF_THE_RECIPE = "recipe"
TRAINING = [
    "workdir",
    "max_steps",
    "global_batch_size",
    "iterations_per_loop",
    "learning_rate",
    "optimizer",
    "schedule",
    "weight_decay",
    "precision",
    "init_from",
    "checkpoint_every_steps",
    "keep_best",
    "seed",
]
GROUPS: Mapping[str, Sequence[str]] = {
    "data": ("data_dir", "train_split", "eval_split", "tiny"),
    OF_THE_RECIPE: (),
    "training": TRAINING,
    "mode": ("mode", "report", "fast_dev_run"),
}


def parsed(recipe: type[Recipe], options: Sequence[str], program: str) -> tuple[Recipe, Devices, Distributed]:
    """Instances with the values of the options.

    Raises InfeedError for a value that a dataclass refuses, and for unknown or malformed options; SystemExit for
    --help, after printing it."""
    recipe = _chosen(recipe, options)
    given: list[Any] = [
        ("recipe", recipe),
        ("devices", Devices, Devices()),
        ("distributed", Distributed, Distributed()),
    ]
    kind = make_dataclass("Flags", given)
    _join_lines(kind)
    if short := not {"-h", "--help"}.isdisjoint(options):
        kind = common_flags(recipe)
    options = ["--help" if option in HELP else option for option in options]
    flags: Any = tyro.conf.OmitArgPrefixes[kind]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            values = tyro.cli(flags, args=options, prog=program, description=_description(recipe))
    except SystemExit as left:
        for cause in _causes(left):
            if isinstance(cause, InfeedError):
                raise cause from None  # tyro would print it in a box, folded into several lines
        if left.code == EXIT_OF_TYRO and (text := _one_line(said.getvalue(), program)):
            raise OptionError(text) from None
        print(said.getvalue(), file=sys.stderr, end="")  # of a recipe's own code, which may end the program, too
        if not left.code:
            print(f"{program} --help-all lists all flags.\n\n" * short, end="")
            print(help_end(program, _examples(recipe), ("trainer.checkpoints", "pipeline.describe")))
        raise
    return values.recipe, values.devices, values.distributed


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
    elif number := re.fullmatch(r"Error parsing (--\S+): .*?(int|float)\b.*?'(.*)'\]?", text, re.IGNORECASE):
        flag, kind, value = number.groups()
        text = f"{flag}={value} is not a {'whole ' * (kind.lower() == 'int')}number"
    elif flags and text.startswith("Unrecognized"):
        text += f". Similar: {flags}"
    hint = ""
    if text.startswith("Unrecognized") and "epochs" in text:
        hint = " The length of a training is in steps: --max-steps. The log says how many an epoch has."
    return f"{text}.{hint} See {program} --help."


def _description(recipe: type) -> str:
    doc = vars(recipe).get("__doc__") or ""
    return "" if doc.startswith(f"{recipe.__name__}(") else cleandoc(doc)  # what a dataclass without a docstring has


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _examples(recipe: type[Recipe]) -> tuple[str, str]:
    if not issubclass(recipe, DataRecipe):
        return TRY, TRAIN
    own_records = recipe.tiny_records is not DataRecipe.tiny_records
    return (WITHOUT_DATA, WITH_DATA) if own_records else (WITH_DATA, f"--data-dir=shards {TRAIN}")


def _join_lines(flags: type) -> None:
    """Makes the docstring of every field of `flags`, and of dataclasses inside it, its help, as one line of text.

    tyro keeps line breaks of indented docstrings, so sentences would end in the middle of a line. A field's own
    metadata["help"] stays."""
    from docstring_parser import parse_from_object  # as tyro does

    for kind in _dataclasses(flags):
        texts: dict[str, str] = {}
        for owner in reversed(kind.__mro__[:-1]):
            texts |= {found.arg_name: found.description or "" for found in parse_from_object(owner).params}
        for each in fields(kind):
            if text := " ".join(texts.get(each.name, "").split()):
                each.metadata = MappingProxyType({"help": text, **each.metadata})


def _dataclasses(kind: type) -> Iterator[type]:
    yield kind
    for inner in get_type_hints(kind).values():
        if isinstance(inner, type) and is_dataclass(inner):
            yield from _dataclasses(inner)


def common_flags(recipe: type[Recipe]) -> type:
    """A dataclass with a field per group, whose fields are these flags, with the defaults and the help of the recipe's.

    The help has to be in their metadata."""
    known = {each.name: (kind, each, default) for kind, each, default in _flags(recipe, None)}
    others = {each.name for each in fields(DataRecipe)}.union(*GROUPS.values())
    own = recipe.common_fields or [each.name for each in fields(recipe) if each.name not in others]
    groups = []
    for title, names in GROUPS.items():
        chosen = [known[name] for name in (own if title == OF_THE_RECIPE else names) if name in known]
        made = [(each.name, kind, _with(default, each)) for kind, each, default in chosen]
        groups.append((title, make_dataclass(title, made, kw_only=True, namespace={"__doc__": ""})))
    return make_dataclass("Flags", groups)


def _flags(kind: type, values: Any) -> Iterator[tuple[Any, "Field[Any]", Any]]:
    """Type, field and default of each flag of a dataclass and of those in it."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        default = getattr(values, each.name) if values is not None else _default(each)
        if is_dataclass(hints[each.name]):
            yield from _flags(hints[each.name], default)
        else:
            yield hints[each.name], each, default


def _default(of: "Field[Any]") -> Any:
    return of.default_factory() if of.default_factory is not MISSING else of.default


def _with(default: Any, like: "Field[Any]") -> Any:
    given: Any = {} if default is MISSING else {"default_factory": lambda: default}
    return field(**given, metadata=like.metadata)
