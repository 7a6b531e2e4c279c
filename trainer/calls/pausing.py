"""What happens between the dispatches of training: saving, evaluating, finding the pace, ending early."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from trainer.calls.call import Call
from trainer.calls.pace import Pace
from trainer.cluster.polls import Decision
from trainer.config import TrainerConfig, seconds_of
from trainer.events.profile import Profile
from trainer.loop.plan import MEASURED_STEPS
from trainer.state import TrainState

__all__ = ["Between", "Evaluating", "TrainingPauses", "Wish"]


class Evaluating(Protocol):
    """Evaluates in the middle of training."""

    every_steps: int | None

    def __call__(self, step: int, state: TrainState, stop: Callable[[str], None], /) -> TrainState:
        """The same state; its arrays may have been used in between. stop(why): ends the training after it."""
        ...


class Wish:
    """That training should end, and why. Host 0's counts: the others need not see what it sees."""

    why = ""

    def __call__(self, why: str) -> None:
        """The first one counts."""
        self.why = self.why or why


class Between(Protocol):
    """What training does with its state between two steps. Each may take long."""

    @property
    def profile(self) -> Profile: ...  # noqa: D102
    @property
    def evaluates(self) -> bool: ...  # noqa: D102
    def save(self, step: int, state: TrainState, /) -> None:
        """Begins to write a checkpoint."""
        ...

    def evaluate(self, step: int, state: TrainState, /) -> TrainState:
        """The same state, once it is evaluated."""
        ...

    def lengthen(self, k: int, /) -> None:
        """From here on k steps a dispatch."""
        ...


class TrainingPauses:
    """The Pauses of training from step `start` to `end`. stopped: why it ended before, if it did.

    every_eval: steps between evaluations; there is one more at the end."""

    def __init__(
        self,
        call: Call,
        config: TrainerConfig,
        start: int,
        end: int,
        between: Between,
        wish: Wish,
        every_eval: int | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call, self._config, self._between, self._pace, self._clock = call, config, between, pace, clock
        self._start, self._end, self._saved = start, end, start
        self._began = self._saved_at = clock()
        self._wish, self._every_eval = wish, every_eval
        self.stopped = Decision()

    def due(self, step: int) -> bool:
        """See Pauses. Saves by steps, by the clock, before an evaluation and at the end."""
        decision = self._call.polls.poll(self._decide)
        if decision.stop:
            self.stopped = decision
        ends = step == self._end or bool(self.stopped.stop)
        self._evaluates = step > self._start and self._wants_evaluation(step, ends)
        by_steps = _falls_on(step, self._config.checkpoint_every_steps)
        self._saves = step > self._saved and (ends or by_steps or decision.save or self._evaluates)
        self._finds_pace = self._pace is not None and step == self._start + MEASURED_STEPS < self._end
        return self._saves or self._evaluates or ends or self._finds_pace or step in self._between.profile.stops

    def _wants_evaluation(self, step: int, ends: bool) -> bool:
        wanted = self._between.evaluates and not self.stopped.preempted
        return wanted and (ends or _falls_on(step, self._every_eval))

    def attend(self, step: int, carry: Any) -> tuple[Any, bool]:
        """See Pauses."""
        self._between.profile.at(step)
        if self._saves:
            self._between.save(step, carry)
            self._saved, self._saved_at = step, self._clock()
        if self._evaluates:
            carry = self._between.evaluate(step, carry)
        if self._finds_pace and self._pace:
            key = f"pace/{self._start}"
            self._between.lengthen(self._pace.agree(self._call.watchdog, key, self._config.stall_seconds))
        return carry, not self.stopped.stop

    def _decide(self) -> Decision:
        if self._wish.why:
            return Decision(True, self._wish.why)
        now, config = self._clock(), self._config
        if config.max_time and now - self._began >= seconds_of("max_time", config.max_time):
            return Decision(True, f"max_time={config.max_time} is over")
        every = config.checkpoint_every
        return Decision(save=bool(every) and now - self._saved_at >= seconds_of("checkpoint_every", every))


def _falls_on(step: int, every: int | None) -> bool:
    return bool(every) and step % (every or 1) == 0
