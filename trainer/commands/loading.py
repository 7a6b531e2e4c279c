"""A recipe from a command line: its class, by name, and its values, from flags; or what is wrong
with them.

The help is there, too: --help shows the flags that people use most, in groups, --help-all all.
Imports little, so that it appears immediately."""

import contextlib
import importlib
import importlib.util
import inspect
import io
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from inspect import cleandoc
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, get_type_hints

import tyro

from pipeline.checks import did_you_mean, nearest
from pipeline.console.commands import help_end, program
from pipeline.console.fields import field_texts
from pipeline.errors import InfeedError, OptionError
from pipeline.user_code import described, source_lines
from trainer.commands import RECIPES
from trainer.config import TrainerConfig
from trainer.hosts.devices import Devices
from trainer.hosts.joining import Distributed
from trainer.recipe import DataRecipe, Recipe

LIBRARIES = (
    "flax",
    "jax",
    "jaxlib",
    "optax",
    "orbax",
    "scipy",
    "tensorboard",
    "tensorflow",
    "tyro",
)
METHODS = {
    "task": "task(self)",
    "train_input": "train_input(self, ctx)",
    "eval_input": "eval_input(self, ctx)",
}
DECORATOR = "Put @dataclass(frozen=True, kw_only=True) above the class."
HOW = (
    "A recipe is a dataclass that subclasses Recipe or DataRecipe of trainer.recipe; "
    "docs/recipes.md has examples."
)
EXIT_OF_TYRO = 2
# in a sentence
SETTING = re.compile(r"""(?<![\w.\-'"(])([a-z][a-z_0-9]*)(?:=(True|False)\b|(=|\b))""")
LENGTHS = ("--max-steps", "--max-epochs")
HELP = frozenset({"-h", "--help", "--help-all"})
TRY, TRAIN = "--workdir=model --fast-dev-run=1", "--workdir=model --max-steps=20"
WITH_DATA = f"--data-dir=shards {TRY}"
WITHOUT_DATA = "--tiny --workdir=model"
SEE_ALSO = ("trainer.checkpoints", "pipeline.commands.describe")
OF_THE_RECIPE = "recipe"
TRAINING = [
    "workdir",
    "max_steps",
    "max_epochs",
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
GROUPS: dict[str, Sequence[str]] = {
    "data": ("data_dir", "train_split", "eval_split", "tiny"),
    OF_THE_RECIPE: (),
    "training": TRAINING,
    "mode": ("mode", "report", "fast_dev_run"),
}


def recipe_class(name: str) -> type[Recipe]:
    """The class that `name` names: a recipe of infeed, "module:Class", or "module" for its Config.

    Raises OptionError, which states what is missing; ModuleNotFoundError for a library that
    training needs."""
    module_name, _, class_name = RECIPES.get(name, name).partition(":")
    class_name = class_name or "Config"
    _check_name(module_name, class_name)
    try:
        module = importlib.import_module(module_name) if _exists(module_name) else None
    except SystemExit as error:
        raise OptionError(
            f"{module_name} ended the program while it was imported, with exit code {error.code}. "
            "Put what it does as a program under: if __name__ == '__main__':"
        ) from error
    except Exception as error:
        lines = source_lines(error)
        if lacks_library(error) or not lines:
            raise
        hint = f". {DECORATOR}" if "non-frozen dataclass" in str(error) else ""
        raise OptionError(
            f"{module_name} cannot be imported: {described(error)}{hint}", *lines
        ) from error
    if module is None:
        missing = f"there is no module {module_name!r}"
        if ":" not in name:
            missing = (
                f"there is no recipe {name!r}.{did_you_mean(name, RECIPES)} Nor is there a module "
                "of that name"
            )
        raise OptionError(
            f"{missing}. For a recipe of your own, change to the directory with "
            f"{module_name.replace('.', '/')}.py, or add that directory to PYTHONPATH."
        )
    recipe = getattr(module, class_name, None)
    if recipe is None:
        raise OptionError(_without(module, class_name))
    _check_class(recipe, f"{module_name}:{class_name}")
    return recipe


def lacks_library(error: Exception) -> bool:
    """Whether a library is missing that a recipe cannot do without, or one whose installation the
    message states."""
    return isinstance(error, ModuleNotFoundError) and (
        (error.name or "").partition(".")[0] in LIBRARIES or "pip install" in str(error)
    )


def _check_name(module_name: str, class_name: str) -> None:
    if module_name.endswith(".py") or "/" in module_name:
        file = Path(module_name)
        raise OptionError(
            f"{module_name} is a file. Give the name of its module: {program('trainer')} "
            f"{file.stem}:{class_name}, in the directory {file.parent.absolute()}."
        )
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise OptionError(
            f"{module_name!r} is not the name of a recipe. Give it first, before all flags: "
            f"{program('trainer')} digits --data-dir ..., or {program('trainer')} my_module:Config "
            "..."
        )


def _exists(module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except ModuleNotFoundError as error:  # a package around it; or one that this package imports
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            return False
        raise


def _without(module: ModuleType, class_name: str) -> str:
    missing = f"{module.__name__} has no class {class_name!r}."
    if names := [
        each.__name__
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__ and issubclass(each, Recipe)
    ]:
        nearest = did_you_mean(class_name, names).replace("Known", "Its recipes")
        return f"{missing}{nearest} Run one: {program('trainer')} {module.__name__}:{names[0]}"
    return f"{missing} {HOW}"


def _check_class(recipe: Any, where: str) -> None:
    if not inspect.isclass(recipe) or not issubclass(recipe, Recipe):
        what = "a class" if inspect.isclass(recipe) else f"a {type(recipe).__name__}"
        raise OptionError(f"{where} is {what}, but not a recipe. {HOW}")
    if inspect.get_annotations(recipe) and "__dataclass_fields__" not in vars(recipe):
        raise OptionError(f"{where} is not a dataclass. {DECORATOR}")
    if missing := [METHODS[name] for name in METHODS if name in recipe.__abstractmethods__]:
        raise OptionError(
            f"{where} lacks the methods {', '.join(missing)}. docs/recipes.md has examples."
        )
    own = _field_names(recipe) - _field_names(
        DataRecipe if issubclass(recipe, DataRecipe) else Recipe
    )
    for settings in (TrainerConfig, Devices, Distributed):
        for name in sorted(own & _field_names(settings)):
            instead = f"use self.trainer.{name}, or " if settings is TrainerConfig else ""
            raise OptionError(
                f"{where} has a field {name!r}, but --{name.replace('_', '-')} exists already: "
                f"{instead}rename it."
            )


def _field_names(kind: Any) -> set[str]:
    return {each.name for each in fields(kind)}


def parsed(
    recipe: type[Recipe], options: Sequence[str], program: str
) -> tuple[Recipe, Devices, Distributed]:
    """Instances with the values of the options.

    Raises InfeedError for a value that a dataclass refuses, and for unknown or malformed options;
    SystemExit for --help, after printing it."""
    if all(any(option.startswith(each) for option in options) for each in LENGTHS):
        raise OptionError(f"{' and '.join(LENGTHS)} are both given. Give one.")
    kind = _all_flags(recipe)
    _join_lines(kind)
    if short := not {"-h", "--help"}.isdisjoint(options):
        kind = common_flags(recipe)
    flags: Any = tyro.conf.OmitArgPrefixes[kind]
    doc = vars(recipe).get("__doc__") or ""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            values, unknown = tyro.cli(
                flags,
                prog=program,
                # a dataclass without a docstring gets one that begins with its name
                description="" if doc.startswith(f"{recipe.__name__}(") else cleandoc(doc),
                args=["--help" if option in HELP else option for option in options],
                return_unknown_args=True,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.SuppressFixed),
            )
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:
            if isinstance(cause, InfeedError):
                raise cause from None  # tyro would print it in a box, folded into several lines
            cause = cause.__cause__ or cause.__context__
        if end.code == EXIT_OF_TYRO and (text := _one_line(errors.getvalue(), program)):
            raise OptionError(text) from None
        # of a recipe's own code, which may end the program, too
        print(errors.getvalue(), file=sys.stderr, end="")
        if not end.code:
            if short:
                print(f"{program} --help-all lists all flags.\n")
            print(help_end(program, _examples(recipe), SEE_ALSO))
        raise
    if unknown:
        raise OptionError(f"{_unrecognized(unknown, kind)} See {program} --help.")
    return values.recipe, values.devices, values.distributed


def _all_flags(recipe: type[Recipe]) -> type:
    parts: list[Any] = [
        ("recipe", recipe),
        ("devices", Devices, Devices()),
        ("distributed", Distributed, Distributed()),
    ]
    return make_dataclass("Flags", parts)


def _has_flag(kinds: type) -> dict[str, bool]:
    """The name of each setting, and whether it has a flag."""
    fixed = tyro.conf.Fixed
    return {
        each.name: fixed not in getattr(hint, "__metadata__", ()) for hint, each, _ in _flags(kinds)
    }


def _unrecognized(arguments: Sequence[str], kind: type) -> str:
    name = arguments[0].partition("=")[0].lstrip("-").replace("-", "_")
    has_flag = _has_flag(kind)
    hint = f" A recipe of your own can set {name}; no flag does."
    if has_flag.get(name, True):
        names = filter(has_flag.get, has_flag)
        hint = "".join(
            f" Did you mean --{each.replace('_', '-')}?" for each in nearest(name, names)
        )
    flags_only = [each for each in arguments if each.startswith("-")]  # without their values
    return f"unrecognized arguments: {', '.join(flags_only or arguments)}.{hint}"


@contextmanager
def naming_flags(recipe: type[Recipe]) -> Iterator[None]:
    """Errors in the block name settings as in Python; they leave it with the flags of this recipe
    in their place."""
    has_flag = _has_flag(_all_flags(recipe))

    def flag(match: re.Match[str]) -> str:
        name, switch, equals = match.groups(default="")
        if not (has_flag.get(name) and ("_" in name or switch or equals)):
            return match[0]
        return f"--{'no-' * (switch == 'False')}{name.replace('_', '-')}{equals}"

    try:
        yield
    except InfeedError as error:
        error.args = tuple(SETTING.sub(flag, str(line)) for line in error.args)
        raise


def _one_line(box: str, program: str) -> str:
    """What tyro prints in a box: the problem, then the flags that are missing. "" if there is no
    box."""
    lines = [line.strip("│| ") for line in box.splitlines()[1:]]  # the first is a title
    is_rule = re.compile("[─╰╯+-]*").fullmatch
    first = itertools.dropwhile(is_rule, lines)
    text = " ".join(itertools.takewhile(lambda line: not is_rule(line), first)).rstrip(".")
    if not text:
        return ""
    if text.startswith("Missing value"):
        text = text.replace("Expected 1 values", "Expected one value")
    elif text.startswith("Missing"):
        flags = ", ".join(
            line.split()[0].rstrip(",")
            for line in lines
            if line.startswith("--") and line.strip("-")
        )
        text = f"the following flags are required: {flags}"
    elif number := re.fullmatch(
        r"Error parsing (--\S+): .*?(int|float)\b.*?'(.*)'\]?", text, re.IGNORECASE
    ):
        flag, kind, value = number.groups()
        word = re.search(r"\|\{(\w+)\}", text)  # another value: INT|{auto}
        text = f"{flag}={value} is not a {'whole ' * (kind.lower() == 'int')}number"
        text += f" or {word[1]}" if word else ""
    return f"{text}. See {program} --help."


def _examples(recipe: type[Recipe]) -> tuple[str, str]:
    if not issubclass(recipe, DataRecipe):
        return TRY, TRAIN
    if recipe.tiny_records is DataRecipe.tiny_records:
        return WITH_DATA, f"--data-dir=shards {TRAIN}"
    return WITHOUT_DATA, WITH_DATA


def _join_lines(flags: type) -> None:
    """Makes the docstring of every field of `flags`, and of dataclasses inside it, its help, as one
    line of text.

    tyro keeps line breaks of indented docstrings, so sentences would end in the middle of a line. A
    field's own metadata["help"] stays."""
    for kind in _dataclasses(flags):
        texts = field_texts(kind)
        for each in fields(kind):
            if text := texts.get(each.name):
                each.metadata = MappingProxyType({"help": text, **each.metadata})


def _dataclasses(kind: type) -> Iterator[type]:
    yield kind
    for inner in get_type_hints(kind).values():
        if isinstance(inner, type) and is_dataclass(inner):
            yield from _dataclasses(inner)


def common_flags(recipe: type[Recipe]) -> type:
    """A dataclass with a field per group, whose fields are these flags, with the defaults and the
    help of the recipe's.

    The help has to be in their metadata."""
    specs = {
        each.name: (each.name, hint, _with(default, each.metadata))
        for hint, each, default in _flags(recipe)
    }
    others = _field_names(DataRecipe).union(*GROUPS.values())
    own = recipe.common_fields or [each.name for each in fields(recipe) if each.name not in others]
    groups = []
    for title, names in (GROUPS | {OF_THE_RECIPE: own}).items():
        group = [specs[name] for name in names if name in specs]
        kind = make_dataclass(title, group, kw_only=True, namespace={"__doc__": ""})
        groups.append((title, kind))
    return make_dataclass("Flags", groups)


def _flags(kind: type, values: Any = MISSING) -> Iterator[tuple[Any, "Field[Any]", Any]]:
    """Type, field and default of each flag of a dataclass and of those in it. values: an instance
    with the defaults, if they are not the fields' own."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if values is not MISSING:
            default = getattr(values, each.name)
        if is_dataclass(hints[each.name]):
            yield from _flags(hints[each.name], default)
        else:
            yield hints[each.name], each, default


def _with(default: Any, metadata: Mapping[str, Any]) -> Any:
    if default is MISSING:
        return field(metadata=metadata)
    return field(default_factory=lambda: default, metadata=metadata)
