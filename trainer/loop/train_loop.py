"""The loop of training: what the host does with the result of each dispatch, and between two dispatches."""

import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial

import jax

from pipeline.logs import logger
from pipeline.storage.storage import join
from trainer.callbacks import CheckpointComplete, CheckpointEnd, LoopEnd
from trainer.checkpointing.manager import Saved
from trainer.config import seconds_of
from trainer.hosts.exchange import Decision, Exchange
from trainer.loop.dispatching import MEASURED_STEPS, DispatchResult
from trainer.loop.evaluate import PeriodicEvaluations
from trainer.loop.job import OpenedInput
from trainer.loop.program import Program
from trainer.loop.session import Begun, Session
from trainer.loop.train_monitor import Recorder, TrainMonitor
from trainer.reports.profile import Profile
from trainer.reports.segments import read_history
from trainer.results import Goodput
from trainer.task import TrainState

log = logger("trainer")


class Pace:
    """iterations_per_loop="10s": measures single steps, and chooses how many steps of `seconds` in total all hosts make
    per dispatch.

    limit: reduces a number of steps to what fits a dispatch."""

    def __init__(
        self, seconds: float, limit: Callable[[int], int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds, self._limit, self._clock = seconds, limit, clock
        self._settled = threading.Event()
        self._observed_at: list[float] = []
        self._steps = 1

    def steps(self) -> int:
        """The steps per dispatch; the feeder's thread waits here until they are settled."""
        self._settled.wait()
        return self._steps

    def observe(self) -> None:
        """Records the end of a single step."""
        if not self._settled.is_set():
            self._observed_at.append(self._clock())

    def agree(self, exchange: Exchange, seconds: float) -> int:
        """The number that host 0 has measured; HostError on another host that does not get it within `seconds`."""
        return exchange.from_host_0("pace", self._measured, seconds)

    def _measured(self) -> int:
        if len(self._observed_at) < 2:  # the first step includes one-time costs
            return 1
        step_seconds = (self._observed_at[-1] - self._observed_at[0]) / (len(self._observed_at) - 1)
        return self._limit(max(1, int(self._seconds / max(step_seconds, 1e-9))))

    def settle(self, steps: int) -> None:
        """Lets the feeder continue."""
        self._steps = steps
        self._settled.set()


def first_began(workdir: str, now: float) -> float:
    """When training first began in the work directory, as time.time(): `now` the first time.

    Raises CheckpointError if its history is damaged."""
    starts = read_history(workdir).starts
    return datetime.fromisoformat(starts[0].time).timestamp() if starts else now


@dataclass
class TrainLoop:
    """Trains from the step in `begun` to `end`, None: to the end of the input. It is the Between of its dispatches.

    began: when training first began in the work directory, as time.time(); None where that is not recorded.
    evaluations: those in between. stopped: what ended it early, if anything."""

    session: Session
    opened: OpenedInput
    begun: Begun
    end: int | None
    _: KW_ONLY
    program: Program
    monitor: TrainMonitor
    recorder: Recorder
    profile: Profile
    began: float | None
    pace: Pace | None = None
    evaluations: PeriodicEvaluations | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        start, checkpoints = self.begun.step, self.session.checkpoints
        self.stopped, self._why = Decision(), ""
        # A run may resume at the end of its input, before the evaluation that was due there.
        self._evaluated = start if not start or checkpoints.was_evaluated(start) else start - 1
        self._saved, self._saved_at = start, self.clock()
        self._began = self._saved_at
        if jax.process_index() == 0:
            checkpoints.on_complete = self._completed

    def stop(self, why: str) -> None:
        """Requests the end of training. The first reason counts, and only host 0's: others may not see what it sees."""
        self._why = self._why or why

    @property
    def productive_seconds(self) -> float:
        """See Goodput; up to the last result."""
        return self.begun.productive_seconds + self.monitor.productive_seconds

    def goodput(self, now: float) -> Goodput | None:
        """Of the work directory. now: as time.time()."""
        return None if self.began is None else Goodput(self.productive_seconds, now - self.began)

    def observe(self, result: DispatchResult) -> None:
        """Handles the result of a dispatch. NanError for a step with non-finite values, if these end the run."""
        end = result.start + result.length
        self.recorder.reached(end)
        speed = self.monitor.observe(result)
        self.session.call_back("on_loop_end", LoopEnd(end, result.scalars, self.monitor.reports, self.stop, speed))
        if self.pace:
            self.pace.observe()

    def due(self, step: int, ended: bool) -> bool:
        """See Between. Saves by steps, by the clock, before an evaluation and at the end."""
        self.session.checkpoints.settle()
        if ended and self.end is not None:  # asked before, at its last step
            return False
        config, evaluations = self.session.job.config, self.evaluations
        decision = self.session.decisions.poll(self._decide)
        if decision.stop:
            self.stopped = decision
        ends = self._ends = ended or step == self.end or bool(self.stopped.stop)
        self._evaluates = (
            evaluations is not None
            and not self.stopped.preempted
            and step > self._evaluated
            and (ends or _falls_on(step, evaluations.every_steps))
        )
        by_steps = _falls_on(step, config.checkpoint_every_steps)
        self._saves = step > self._saved and (ends or by_steps or decision.save or self._evaluates)
        measured = self.begun.step + MEASURED_STEPS
        self._finds_pace = self.pace is not None and step == measured != self.end and not ended
        return self._saves or self._evaluates or ends or self._finds_pace or step in self.profile.stops

    def act(self, step: int, carry: TrainState) -> tuple[TrainState, bool]:
        """See Between: does what was due at this step."""
        self.profile.at(step)
        if self._saves:
            self._save(step, carry)
            self._saved, self._saved_at = step, self.clock()
        if self._evaluates and self.evaluations:
            self._evaluated = step
            with self.monitor.away():
                carry = self.evaluations(step, carry, self.stop, final=self._ends)
        if self._finds_pace and self.pace:
            self._set_pace(self.pace)
        return carry, not self.stopped.stop

    def _decide(self) -> Decision:
        if self._why:
            return Decision(True, self._why)
        now, config = self.clock(), self.session.job.config
        if config.max_time and now - self._began >= seconds_of("max_time", config.max_time):
            return Decision(True, f"max_time={config.max_time} is over")
        every = config.checkpoint_every
        return Decision(save=bool(every) and now - self._saved_at >= seconds_of("checkpoint_every", every))

    def _save(self, step: int, state: TrainState) -> None:
        """Starts to write a checkpoint; a fast_dev_run writes none."""
        job, source = self.session.job, self.opened.source
        if job.config.fast_dev_run:
            return
        with self.monitor.saving():
            self.monitor.reports.flush(now=True)  # a run that resumes here does not write earlier points
            position = source.state(source.advance(self.begun.position, step - self.begun.step))
            seconds, config = self.productive_seconds, job.config.to_json()
            saved = Saved(step, state, position, config, productive_seconds=seconds, run=self.recorder.run)
            self.session.checkpoints.save(saved, partial(self.monitor.check.for_save, step, state))
            self.session.call_back("on_checkpoint", CheckpointEnd(step, state, self.monitor.reports, self.stop))

    def _completed(self, step: int) -> None:
        path = join(self.session.checkpoints.directory, str(step))
        self.session.call_back("on_checkpoint_complete", CheckpointComplete(step, path, self.monitor.reports))

    def _set_pace(self, pace: Pace) -> None:
        """Makes later dispatches as long as the hosts agree on."""
        config = self.session.job.config
        k = pace.agree(self.session.exchange, config.stall_seconds)
        log.info("%d steps per dispatch, for %s", k, config.iterations_per_loop)
        with self.monitor.away():
            self.program.lengthen(k)
            pace.settle(k)
            with self.session.activity.doing("compiling"):
                self.program.compile({k})


def _falls_on(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
