"""The last step of a call of train, from its arguments, the settings and the input."""

from collections.abc import Callable

from pipeline.errors import OptionError
from trainer.config import TrainerConfig, check_positive_int
from trainer.inputs import Input

__all__ = ["check_ends", "goal_of"]


def goal_of(steps: int | None, max_steps: int | None, config: TrainerConfig) -> Callable[[int], int | None]:
    """Returns a function from the first step of a run to its last; to None if only the input ends it."""
    if steps is not None and max_steps is not None:
        raise OptionError(
            f"steps={steps} and max_steps={max_steps} are both given. Give one: steps counts from the newest "
            "checkpoint, max_steps from the very first run."
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None:
            check_positive_int(name, value)
    end = max_steps or config.max_steps or config.fast_dev_run
    return lambda start: end if steps is None else start + steps


def check_ends(source: Input | None, end: int | None) -> None:
    """Raises OptionError for a training that neither a last step nor its input ends."""
    if source is not None and source.info.endless and end is None:
        raise OptionError(
            "no end is given, and the input never ends. Give steps or max_steps to train, or max_steps in the "
            "TrainerConfig."
        )
