"""The command that shows what a step saw, for messages about that step."""

import shlex
from collections.abc import Callable

from pipeline.tools.program import program

__all__ = ["Hint", "hint_of", "no_hint"]

Hint = Callable[[int], str]
"""A step -> the end of a sentence, and one that names a command; "" if no command can help."""


def no_hint(step: int) -> str:
    """For runs that leave no history."""
    del step
    return ""


def hint_of(workdir: str, by_loss: bool = True) -> Hint:
    """Names the command for steps of the runs in a work directory. by_loss: whether it can compute losses."""
    order, losses = (" by loss", " --losses") if by_loss else ("", "")
    command = f"{program('trainer.rewind')} {shlex.quote(workdir)}"

    def hint(step: int) -> str:
        return f". To list its records{order}, run: {command} --step {step}{losses}"

    return hint
