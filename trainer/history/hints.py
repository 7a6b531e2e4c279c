"""The command that shows what a step saw, for messages about that step."""

import shlex
from collections.abc import Callable

from pipeline.tools.program import program

__all__ = ["Hint", "hint_of", "no_hint"]

Hint = Callable[[int], str]
"""A step -> a clause that begins with a colon and names a command; "" if no command can help."""


def no_hint(step: int) -> str:
    """For runs that leave no history."""
    del step
    return ""


def hint_of(workdir: str) -> Hint:
    """Names the command for steps of the runs in a work directory."""

    def hint(step: int) -> str:
        return f": its records, by loss: {program('trainer.rewind')} {shlex.quote(workdir)} --step {step} --losses"

    return hint
