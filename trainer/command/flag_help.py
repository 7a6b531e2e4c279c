"""The help of a recipe's flags: docstrings below fields without the source's line breaks, and examples at the end."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import get_type_hints

from pipeline.tools.program import help_end
from trainer.recipe import DataRecipe, Recipe

__all__ = ["WITHOUT_DATA", "WITH_DATA", "end_of_help", "join_lines"]

TRY, TRAIN = "--workdir=model --fast-dev-run=1", "--workdir=model --max-steps=20"
WITH_DATA, WITHOUT_DATA = f"--data-dir=shards {TRY}", "--tiny --workdir=model"
_SEE_ALSO = ("trainer.checkpoints", "pipeline.describe")


def end_of_help(program: str, recipe: type[Recipe]) -> str:
    """The last lines of a recipe's help. program: how the user started it, `infeed train digits`."""
    return help_end(program, _examples(recipe), _SEE_ALSO)


def _examples(recipe: type[Recipe]) -> tuple[str, str]:
    if not issubclass(recipe, DataRecipe):
        return TRY, TRAIN
    own_records = recipe.tiny_records is not DataRecipe.tiny_records
    return (WITHOUT_DATA, WITH_DATA) if own_records else (WITH_DATA, f"--data-dir=shards {TRAIN}")


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
