"""The help of a recipe's flags: docstrings below fields without the source's line breaks, and examples at the end."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import get_type_hints

from pipeline.tools.program import help_end
from trainer.recipe import DataRecipe, Recipe

__all__ = ["EXAMPLES", "end_of_help", "join_lines"]

EXAMPLES = ("--workdir=model --fast-dev-run=1", "--workdir=model --max-steps=20")
_SEE_ALSO = ("trainer.checkpoints", "pipeline.describe")


def end_of_help(program: str, recipe: type[Recipe]) -> str:
    """The last lines of a recipe's help. program: how the user started it, `infeed train digits`."""
    data = "--data-dir=shards " if issubclass(recipe, DataRecipe) else ""
    return help_end(program, [f"{data}{example}" for example in EXAMPLES], _SEE_ALSO)


def join_lines(flags: type) -> None:
    """Makes the docstring of every field of `flags`, and of dataclasses inside it, its help, as one line of text.

    tyro keeps line breaks of indented docstrings, so sentences would end in the middle of a line. A field's own
    metadata["help"] stays."""
    from docstring_parser import parse_from_object  # as tyro does

    for kind in _dataclasses(flags):
        texts: dict[str, str] = {}
        for owner in reversed(kind.__mro__[:-1]):
            texts |= {found.arg_name: found.description or "" for found in parse_from_object(owner).params}
        for field in fields(kind):
            if text := " ".join(texts.get(field.name, "").split()):
                field.metadata = MappingProxyType({"help": text, **field.metadata})


def _dataclasses(kind: type) -> Iterator[type]:
    yield kind
    for inner in get_type_hints(kind).values():
        if isinstance(inner, type) and is_dataclass(inner):
            yield from _dataclasses(inner)
