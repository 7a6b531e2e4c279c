"""What the pages of a recipe share: its name, the command that was given, and the records that its input reads."""

import shlex
from collections.abc import Callable
from typing import Any

from pipeline.sources.records import Records
from pipeline.tools.program import program
from trainer.history.segments import Command
from trainer.inputs import InputContext
from trainer.recipe import Recipe

__all__ = ["PageInput", "command_text", "name_of"]


class PageInput:
    """An input_fn that remembers which data its input read, so that a page shows no records of other data.

    A recipe's input may wrap its records, or replace them: their numbers then mean something else."""

    def __init__(self, input_fn: Callable[[InputContext], Any]) -> None:
        self._input_fn, self._fingerprint = input_fn, None

    def __call__(self, ctx: InputContext) -> Any:
        """What input_fn returns."""
        source = self._input_fn(ctx)
        self._fingerprint = getattr(source, "fingerprint", None)
        return source

    def reads(self, records: Records) -> bool:
        """Whether the numbers of the input are those of these records."""
        return records.fingerprint == self._fingerprint


def name_of(recipe: Recipe) -> str:
    """The name of a recipe in the titles of pages, such as mnist."""
    return type(recipe).__module__.rpartition(".")[2]


def command_text(command: Command | None) -> str:
    """The command as the user gave it; "" for a recipe that a program runs."""
    return f"{program('trainer')} {shlex.join([command.recipe, *command.options])}" if command else ""
