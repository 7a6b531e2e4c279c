"""What happens between the dispatches of training: saving, evaluating, setting the pace, ending early."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.logs import logger
from pipeline.storage.storage import join
from trainer.callbacks import CheckpointComplete, CheckpointEnd
from trainer.checkpointing.manager import Saved
from trainer.cluster.decisions import Decision
from trainer.config import seconds_of
from trainer.events.goodput import TimeSpent
from trainer.events.profile import Profile
from trainer.loop.dispatch_plan import MEASURED_STEPS
from trainer.loop.dispatching import DispatchResult
from trainer.loop.program import Program
from trainer.modes.alternating import Alternating
from trainer.modes.pace import Pace
from trainer.modes.recording import Recorder
from trainer.modes.session import Session
from trainer.modes.training_monitor import TrainingMonitor
from trainer.setup import Opened, Setup
from trainer.state import TrainState

__all__ = ["Actions", "BetweenDispatches", "StopRequest"]

log = logger("trainer")


class StopRequest:
    """A request to end training, with its reason. Only host 0's counts: other hosts may not see what it sees."""

    why = ""

    def __call__(self, why: str) -> None:
        """The first reason counts."""
        self.why = self.why or why


@dataclass(frozen=True)
class Actions:
    """What training does with its state between two steps. Each method may take long.

    start, position: the run's first step, and the input's position there. spent: the time up to it."""

    session: Session
    setup: Setup
    opened: Opened
    start: int
    position: Any
    spent: TimeSpent
    program: Program
    monitor: TrainingMonitor
    recorder: Recorder
    profile: Profile
    stop_request: StopRequest
    pace: Pace | None
    evaluating: Alternating | None

    def observe(self, result: DispatchResult) -> None:
        """Handles the result of a dispatch."""
        self.recorder.reached(result.start + result.length)
        self.monitor.observe(result)
        if self.pace:
            self.pace.observe()

    def save(self, step: int, state: TrainState) -> None:
        """Starts to write a checkpoint; a fast_dev_run writes none."""
        if self.setup.config.fast_dev_run:
            return
        with self.monitor.saving():
            self._save(step, state)

    def _save(self, step: int, state: TrainState) -> None:
        self.monitor.check.before_save(step, state)
        self.monitor.reports.flush(now=True)  # a run that resumes here does not write earlier points
        source = self.opened.source
        input_state = source.state(source.advance(self.position, step - self.start))
        seconds = self.spent.productive(self.monitor.productive_seconds)
        config, run = self.setup.config.to_json(), self.recorder.run
        saved = Saved(step, state, input_state, config, productive_seconds=seconds, run=run)
        self.session.checkpoints.save(saved)
        for callback in self.setup.callbacks:
            callback.on_checkpoint(CheckpointEnd(step, state, self.monitor.reports, self.stop_request))

    def completed(self, step: int) -> None:
        """Tells callbacks of a complete checkpoint."""
        path = join(self.session.checkpoints.directory, str(step))
        for callback in self.setup.callbacks:
            callback.on_checkpoint_complete(CheckpointComplete(step, path, self.monitor.reports))

    def set_pace(self, pace: Pace) -> None:
        """Makes later dispatches as long as the hosts agree on."""
        k = pace.agree(self.session.exchange, self.setup.config.stall_seconds)
        log.info("%d steps per dispatch, for %s", k, self.setup.config.iterations_per_loop)
        with self.monitor.away():
            self.program.lengthen(k)
            pace.settle(k)
            self.program.compile({k}, self.session.check)


class BetweenDispatches:
    """The Between of training to step `end`, or to the end of the input. stopped: what ended it early, if anything."""

    def __init__(self, actions: Actions, end: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._actions, self._config, self._end, self._clock = actions, actions.setup.config, end, clock
        self._saved, self.stopped = actions.start, Decision()
        # A run may resume at the end of its input, before the evaluation that was due there.
        evaluated = not actions.start or actions.session.checkpoints.was_evaluated(actions.start)
        self._evaluated = actions.start if evaluated else actions.start - 1
        self._began = self._saved_at = clock()

    def due(self, step: int, ended: bool) -> bool:
        """See Between. Saves by steps, by the clock, before an evaluation and at the end."""
        self._actions.session.checkpoints.settle()
        if ended and self._end is not None:  # asked before, at its last step
            return False
        actions, evaluating = self._actions, self._actions.evaluating
        decision = actions.session.decisions.poll(self._decide)
        if decision.stop:
            self.stopped = decision
        ends = self._ends = ended or step == self._end or bool(self.stopped.stop)
        self._evaluates = (
            evaluating is not None
            and not self.stopped.preempted
            and step > self._evaluated
            and (ends or _falls_on(step, evaluating.every_steps))
        )
        by_steps = _falls_on(step, self._config.checkpoint_every_steps)
        self._saves = step > self._saved and (ends or by_steps or decision.save or self._evaluates)
        measured = actions.start + MEASURED_STEPS
        self._finds_pace = actions.pace is not None and step == measured != self._end and not ended
        return self._saves or self._evaluates or ends or self._finds_pace or step in actions.profile.stops

    def act(self, step: int, carry: Any) -> tuple[Any, bool]:
        actions = self._actions
        actions.profile.at(step)
        if self._saves:
            actions.save(step, carry)
            self._saved, self._saved_at = step, self._clock()
        if self._evaluates and actions.evaluating:
            self._evaluated = step
            with actions.monitor.away():
                carry = actions.evaluating(step, carry, actions.stop_request, final=self._ends)
        if self._finds_pace and actions.pace:
            actions.set_pace(actions.pace)
        return carry, not self.stopped.stop

    def _decide(self) -> Decision:
        if why := self._actions.stop_request.why:
            return Decision(True, why)
        now, config = self._clock(), self._config
        if config.max_time and now - self._began >= seconds_of("max_time", config.max_time):
            return Decision(True, f"max_time={config.max_time} is over")
        every = config.checkpoint_every
        return Decision(save=bool(every) and now - self._saved_at >= seconds_of("checkpoint_every", every))


def _falls_on(step: int, every: int | None) -> bool:
    return bool(every) and step % (every or 1) == 0
