"""What is due between two dispatches of training: by steps, by the clock, or because someone
asked."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from trainer.config import TrainerConfig, seconds_of
from trainer.hosts.exchange import Decision, SharedDecisions
from trainer.loop.dispatching import MEASURED_STEPS


class Due(NamedTuple):
    """What is due after a step. pause: anything at all. ends: whether no step follows, as far as is
    known."""

    pause: bool = False
    save: bool = False
    evaluate: bool = False
    set_pace: bool = False
    ends: bool = False


@dataclass
class Schedule:
    """What is due after each step from `start` to `end` (None: to the end of the input), the same
    on all hosts.

    evaluated: the last step whose evaluation is not due again. evaluate_every: in steps; 0: only at
    the end; None: never. stops: other steps at which to pause. stopped: what ended the run early,
    if anything."""

    config: TrainerConfig
    decisions: SharedDecisions
    start: int
    end: int | None
    evaluated: int = 0
    evaluate_every: int | None = None
    stops: Collection[int] = ()
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._saved = self.start
        self._began = self._saved_at = self.clock()
        self.stopped = Decision()
        self._why = ""

    def stop(self, why: str) -> None:
        """Requests the end of training. The first reason counts, and only host 0's: others may not
        see what it sees."""
        self._why = self._why or why

    def saved(self, step: int) -> None:
        """Notes that the checkpoint of this step is being written."""
        self._saved = step
        self._saved_at = self.clock()

    def due(self, step: int, ended: bool) -> Due:
        """What is due after a step. Call it once per step, in order, and again with `ended` after
        the end of the input. An evaluation is due only once."""
        if ended and self.end is not None:  # asked before, at its last step
            return Due()
        decision = self.decisions.poll(self._decide)
        if decision.stop:
            self.stopped = decision
        ends = ended or step == self.end or bool(self.stopped.stop)
        evaluate = self._evaluates(step, ends)
        by_steps = _falls_on(step, self.config.checkpoint_every_steps)
        save = step > self._saved and (ends or by_steps or decision.save or evaluate)
        timed = self.config.loop_seconds is not None
        set_pace = timed and step == self.start + MEASURED_STEPS != self.end and not ended
        pause = save or evaluate or ends or set_pace or step in self.stops
        return Due(pause, save, evaluate, set_pace, ends)

    def _evaluates(self, step: int, ends: bool) -> bool:
        every = self.evaluate_every
        if every is None or self.stopped.preempted or step <= self.evaluated:
            return False
        if not ends and not _falls_on(step, every):
            return False
        self.evaluated = step
        return True

    def _decide(self) -> Decision:
        if self._why:
            return Decision(True, self._why)
        now = self.clock()
        config = self.config
        if config.max_time and now - self._began >= seconds_of("max_time", config.max_time):
            return Decision(True, f"max_time={config.max_time} is over")
        every = config.checkpoint_every
        return Decision(
            save=bool(every) and now - self._saved_at >= seconds_of("checkpoint_every", every)
        )


def _falls_on(step: int, every: int | None) -> bool:
    return bool(every) and step % every == 0
