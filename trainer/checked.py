"""What the host checks in training: that every value is finite (TrainerConfig.on_nan), and that no loss is far above
those before it. What the devices compute for it is in gradients.py."""

from collections import deque

import numpy as np

from pipeline.errors import NanError
from pipeline.logs import logger
from trainer.config import OnNan
from trainer.gradients import LOSS, checked_names, finder_of_broken
from trainer.history.segments import Hint, no_hint
from trainer.loop.dispatching import DispatchResult
from trainer.mesh import Placement
from trainer.state import TrainState

MOST_IN_A_ROW = 100  # skipped steps; beyond that the model no longer learns
RECENT, LEAST = 256, 64  # losses to compare with
DEVIATIONS = 12  # standard deviations: normally distributed losses would practically never reach it
LOG_DEVIATIONS = 6  # of the losses' logarithms: log-normal losses, which jump more, would practically never reach it
NORMAL = 1.4826  # the standard deviation of normally distributed values, per median absolute deviation
SHARE = 1.2  # a spike exceeds the median by at least this factor, even if losses hardly vary

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


class LossSpikes:
    """Warns of a loss that is far above the last 256. After each warning it stays quiet twice as long as after the one
    before, so that a loss that jumps all the time does not fill the log.

    hint: ends the warning."""

    def __init__(self, hint: Hint) -> None:
        self._recent, self._hint = deque[float](maxlen=RECENT), hint
        self._quiet_until, self._quiet_steps = 0, RECENT

    def observe(self, start: int, losses: np.ndarray) -> None:
        """Looks at the losses of the steps start + 1, start + 2, ..."""
        finite = np.where(np.isfinite(losses), losses, -np.inf)
        at = int(np.argmax(finite))
        step, loss = start + at + 1, float(finite[at])
        if len(self._recent) >= LEAST and step > self._quiet_until and loss > self._bound():
            usual = float(np.median(self._recent))
            log.warning("step %d: the loss of %.4g is far above the usual %.4g%s", step, loss, usual, self._hint(step))
            self._quiet_until, self._quiet_steps = step + self._quiet_steps, 2 * self._quiet_steps
        self._recent.extend(finite[finite > -np.inf].tolist())

    def _bound(self) -> float:
        """What only a spike exceeds; infinite if most losses are equal or 0, which does not tell how losses vary."""
        recent = np.array(self._recent)
        median, deviation = _spread(recent)
        if median == 0 or deviation == 0:
            return np.inf
        bounds = [median + DEVIATIONS * deviation, median + (SHARE - 1) * abs(median)]
        if recent.min() > 0:
            log_median, log_deviation = _spread(np.log(recent))
            with np.errstate(over="ignore"):
                bounds.append(np.exp(log_median + LOG_DEVIATIONS * log_deviation))
        return float(max(bounds))


def _spread(values: np.ndarray) -> tuple[np.floating, np.floating]:
    """The median, and the standard deviation if the values without outliers are normally distributed."""
    median = np.median(values)
    return median, NORMAL * np.median(np.abs(values - median))
