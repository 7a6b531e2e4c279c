"""How training treats steps with non-finite values: TrainerConfig.on_nan."""

import numpy as np

from pipeline.errors import NanError
from pipeline.logs import logger
from trainer.checked import LOSS, checked_names, finder_of_broken
from trainer.config import OnNan
from trainer.history.hints import Hint, no_hint
from trainer.loop.dispatching import DispatchResult
from trainer.mesh import Placement
from trainer.state import TrainState

__all__ = ["FiniteCheck"]

MOST_IN_A_ROW = 100  # skipped steps; beyond that the model no longer learns

log = logger("trainer")


class FiniteCheck:
    """Checks the `_bad_leaf` of every step. skipped: how many steps were skipped. hint: ends messages about a step."""

    def __init__(self, on_nan: OnNan, state: TrainState, placement: Placement, hint: Hint = no_hint) -> None:
        self._broken = finder_of_broken(placement)
        self._on_nan, self.skipped, self._in_a_row, self._hint = on_nan, 0, 0, hint
        self._names = checked_names(state.variables)

    def reported(self, bad: np.ndarray) -> int:
        """How many steps of a dispatch to report: all, or up to the broken one that ends the run."""
        return int(np.argmax(bad >= 0)) + 1 if self._on_nan == "raise" and (bad >= 0).any() else len(bad)

    def observe(self, result: DispatchResult, bad: np.ndarray) -> None:
        """Raises NanError, naming the first broken step and the first broken array, unless such steps are skipped."""
        for i, leaf in enumerate(bad.tolist()):
            self._in_a_row = self._in_a_row + 1 if leaf >= 0 else 0
            if leaf >= 0:
                self._found(result, i, self._names[leaf])

    def before_save(self, step: int, state: TrainState) -> None:
        """Raises NanError if any array of the state is not finite, including the optimizer's."""
        if self._on_nan != "ignore" and (name := self._broken(state)):
            raise NanError(
                f"at step {step} {name} is not finite, though the loss, the gradients and the model are. No checkpoint "
                "contains it; the same command resumes from the newest checkpoint. Check the optimizer."
            )

    def _found(self, result: DispatchResult, i: int, name: str) -> None:
        step, loss = result.start + i + 1, float(result.scalars["loss"][i])
        what = f"{name} is {loss}" if name == LOSS else f"{name} is not finite (the loss is {loss:.4g})"
        said = f"after step {step} {what}"
        if self._on_nan == "raise":
            raise NanError(
                f"{said}. No checkpoint contains it; the same command resumes from the newest checkpoint. Lower the "
                "learning rate, clip the gradient, or skip such steps with on_nan=skip. Check the records of that step "
                f"(each label must be below the number of the model's classes){self._hint(step)}"
            )
        self.skipped += 1
        log.warning("%s: skipped the step (%d so far)%s", said, self.skipped, self._hint(step))
        if self._in_a_row > MOST_IN_A_ROW:
            raise NanError(f"{said}, as in the {MOST_IN_A_ROW} steps before it. Skipping steps does not help here.")
