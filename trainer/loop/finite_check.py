"""Checks that every value of a training is finite (TrainerConfig.on_nan).

What the devices compute for it is in gradients.py."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import NanError
from pipeline.logs import logger
from trainer.config import OnNan
from trainer.loop.dispatching import DispatchResult
from trainer.loop.recorder import Hint
from trainer.step.gradients import LOSS, Finder
from trainer.task import TrainState

MOST_IN_A_ROW = 100  # skipped steps; beyond that the model no longer learns
log = logger("trainer")


@dataclass
class FiniteCheck:
    """Checks the `_bad_leaf` of every step, a number in the checked `names`. skipped: how many
    steps were skipped. hint: ends messages about a step."""

    on_nan: OnNan
    names: list[str]
    finder: Finder
    hint: Hint

    def __post_init__(self) -> None:
        self.skipped = 0
        self._in_a_row = 0

    def reported(self, bad: np.ndarray) -> int:
        """How many steps of a dispatch to report: all, or up to the broken one that ends the
        run."""
        return (
            int(np.argmax(bad >= 0)) + 1
            if self.on_nan == "raise" and (bad >= 0).any()
            else len(bad)
        )

    def observe(self, result: DispatchResult, bad: np.ndarray) -> None:
        """Raises NanError, naming the first broken step and the first broken array, unless such
        steps are skipped."""
        for i, leaf in enumerate(bad.tolist()):
            if leaf < 0:
                self._in_a_row = 0
                continue
            self._in_a_row += 1
            step = result.start + i + 1
            loss = float(result.scalars["loss"][i])
            name = self.names[leaf]
            value = str(loss) if name == LOSS else f"not finite (the loss is {loss:.4g})"
            problem = f"after step {step} {name} is {value}"
            if self.on_nan == "raise":
                raise NanError(
                    f"{problem}. No checkpoint contains it; the same command resumes from the "
                    "newest checkpoint. Lower the learning rate, clip the gradient, or skip such "
                    "steps (--on-nan skip). Check the records of that step (each label must be "
                    f"below the number of the model's classes){self.hint(step)}"
                )
            self.skipped += 1
            log.warning(
                "%s: skipped the step (%d so far)%s", problem, self.skipped, self.hint(step)
            )
            if self._in_a_row > MOST_IN_A_ROW:
                raise NanError(
                    f"{problem}, as in the {MOST_IN_A_ROW} steps before it. Skipping steps does "
                    "not help here."
                )

    def begin(self, step: int, state: TrainState) -> Callable[[], None]:
        """Begins to check a state that is about to be saved. The result waits for the devices, in
        any thread, and raises NanError if an array is not finite, including the optimizer's."""
        broken = self.finder(state) if self.on_nan != "ignore" else str

        def verify() -> None:
            if name := broken():
                raise NanError(
                    f"at step {step} {name} is not finite, though the loss, the gradients and the "
                    "model are. No checkpoint contains it; the same command resumes from the "
                    "newest checkpoint. Check the optimizer."
                )

        return verify
