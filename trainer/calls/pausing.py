"""What happens between the dispatches of training: saving, evaluating, finding the pace, ending early."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from trainer.calls.call import Call
from trainer.calls.pace import Pace
from trainer.cluster.polls import Decision
from trainer.config import TrainerConfig, seconds_of
from trainer.events.profile import Profile
from trainer.loop.plan import MEASURED_STEPS
from trainer.state import TrainState

__all__ = ["Between", "TrainingPauses"]


class Evaluating(Protocol):
    """Evaluates in the middle of training."""

    every_steps: int | None

    def __call__(self, step: int, state: TrainState, /) -> TrainState:
        """The same state; its arrays may have been used in between."""
        ...


@dataclass(frozen=True)
class Between:
    """What training does with its state between two steps. Each may take long.

    save(step, state). lengthen(k): from here on k steps a dispatch. evaluate: every so many steps, and at the end."""

    save: Callable[[int, TrainState], None]
    lengthen: Callable[[int], None]
    profile: Profile
    evaluate: Evaluating | None


class TrainingPauses:
    """The Pauses of training from step `start` to `end`. stopped: why it ended before, if it did."""

    def __init__(
        self,
        call: Call,
        config: TrainerConfig,
        start: int,
        end: int,
        between: Between,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call, self._config, self._between, self._pace, self._clock = call, config, between, pace, clock
        self._start, self._end, self._saved = start, end, start
        self._began = self._saved_at = clock()
        self._wish = ""
        self.stopped = Decision()

    def stop(self, why: str) -> None:
        """Ends training within three dispatches, if this is host 0: the others need not see what it sees."""
        self._wish = self._wish or why

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
        evaluate = self._between.evaluate
        if evaluate is None or self.stopped.preempted:
            return False
        return ends or _falls_on(step, evaluate.every_steps)

    def attend(self, step: int, carry: Any) -> tuple[Any, bool]:
        """See Pauses."""
        self._between.profile.at(step)
        if self._saves:
            self._between.save(step, carry)
            self._saved, self._saved_at = step, self._clock()
        if self._evaluates and self._between.evaluate:
            carry = self._between.evaluate(step, carry)
        if self._finds_pace and self._pace:
            key = f"pace/{self._start}"
            self._between.lengthen(self._pace.agree(self._call.watchdog, key, self._config.stall_seconds))
        return carry, not self.stopped.stop

    def _decide(self) -> Decision:
        if self._wish:
            return Decision(True, self._wish)
        now, config = self._clock(), self._config
        if config.max_time and now - self._began >= seconds_of("max_time", config.max_time):
            return Decision(True, f"max_time={config.max_time} is over")
        every = config.checkpoint_every
        return Decision(save=bool(every) and now - self._saved_at >= seconds_of("checkpoint_every", every))


def _falls_on(step: int, every: int | None) -> bool:
    return bool(every) and step % (every or 1) == 0
