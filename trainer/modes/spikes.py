"""Notices a loss that suddenly rises far above the losses before it, and names the command that shows why."""

from collections import deque

import numpy as np

from pipeline.logs import logger
from trainer.history.hints import Hint

__all__ = ["LossSpikes"]

RECENT, LEAST = 256, 64  # losses to compare with
DEVIATIONS = 12  # standard deviations: normally distributed losses would practically never reach it
LOG_DEVIATIONS = 6  # of the losses' logarithms: log-normal losses, which jump more, would practically never reach it
NORMAL = 1.4826  # the standard deviation of normally distributed values, per median absolute deviation
SHARE = 1.2  # a spike exceeds the median by at least this factor, even if losses hardly vary

log = logger("trainer")


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
