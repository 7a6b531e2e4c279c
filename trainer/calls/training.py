"""One run of training: from the newest checkpoint to its end, with everything that happens on the way."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from pipeline.logs import logger
from trainer.callbacks import CheckpointEnd
from trainer.calls.call import Call
from trainer.calls.pace import Pace
from trainer.calls.pausing import Evaluating, TrainingPauses, Wish
from trainer.calls.resuming import resumed_position
from trainer.calls.watch import Watch
from trainer.checkpointing.checkpoint import Saved
from trainer.events.profile import Profile
from trainer.exits import ending
from trainer.job import Job, Opened
from trainer.loop.plan import Marks, Steps
from trainer.loop.program import Program
from trainer.loop.run import Look, run
from trainer.results import TrainResult
from trainer.state import TrainState
from trainer.steps import train_step

__all__ = ["train_run"]

log = logger("trainer")


def train_run(
    call: Call, job: Job, opened: Opened, start: int, end: int, evaluating: Evaluating | None = None
) -> TrainResult:
    """Trains steps start..end, from the checkpoint of `start` if that is above 0.

    Raises an Ending, with all that was done saved, when a process of the run was asked to end."""
    config = job.config
    with call.preemption.leavable():
        state, position = _begin(call, job, opened, start)
    profile = Profile(config, start, end)
    every_eval = evaluating.every_steps if evaluating else None
    every = [n for n in (config.checkpoint_every_steps, every_eval) if n]
    pace = Pace(config.loop_seconds, partial(job.steps_a_dispatch, opened, every)) if config.loop_seconds else None
    k = 1 if pace else job.steps_a_dispatch(opened, every)
    program = job.program(train_step(job.task, config.on_nan), state, opened, k)
    steps = _steps(start, end, pace or k, Marks(every, profile.stops))
    log.info(
        "training steps %d to %d: batch %d on %d %s device(s), %s steps a dispatch%s",
        *(start, end, opened.global_batch, job.placement.mesh.size, jax.default_backend()),
        *(f"{config.iterations_per_loop} of" if pace else k, " in one program" if program.scans else ""),
    )

    with ExitStack() as stack:
        if pace:
            stack.callback(pace.settle, 1)  # the feeder's thread may wait for it
        feeder = stack.enter_context(job.feeding(program, opened, position, steps, call.check, call.check_late))
        wish = Wish()
        watch = stack.enter_context(Watch(job, feeder, state, start, end, wish, call.ownership.fence))
        stack.enter_context(profile)
        between = _Between(call, job, opened, start, position, program, watch, profile, wish, pace, evaluating)
        pauses = TrainingPauses(call, config, start, end, between, wish, every_eval, pace)
        state, step = run(state, start, feeder, program, between.look, pauses)
    if bad := opened.source.quarantine:
        log.warning("training: %d bad records were met on this host (%s)", len(bad), opened.source.on_error)
    stopped = pauses.stopped.stop
    if stopped:
        saved = "which is saved" if step and not config.fast_dev_run else "where nothing is saved"
        log.warning("%s: training ends at step %d of %d, %s", stopped, step, end, saved)
    if pauses.stopped.preempted:
        done = f"step {step} is saved, and the same command goes on from there"
        done = done if step and not config.fast_dev_run else "nothing was to be saved, run the same command again"
        raise ending(f"{stopped}; {done}", pauses.stopped.interrupted, together=True)
    executables, speed = len(program.executables), watch.speed(step - start)
    return TrainResult(start, step, state, watch.last, speed, executables, stopped or None)


def _steps(start: int, end: int, k: Pace | int, marks: Marks) -> Steps:
    return Steps.planned(start, end, k, marks) if isinstance(k, int) else Steps.timed(start, end, k.steps, marks)


def _begin(call: Call, job: Job, opened: Opened, start: int) -> tuple[TrainState, Any]:
    config, source = job.config, opened.source
    if not opened.resumable:
        log.info("the input is a plain iterable: a resumed run starts it anew, it has no position to go on from")
    if start == 0:
        return job.fresh_state(opened, call.check), source.start
    saved = call.checkpoints.restore(start, job.abstract_state(opened))
    changed = saved.changes(config.to_json())
    log.info("going on from the checkpoint of step %d%s", start, "; changed: " * bool(changed) + ", ".join(changed))
    return saved.state, resumed_position(source, saved, config.to_json())


@dataclass(frozen=True)
class _Between:
    """See Between. start, position: the step that the run began at, and where its input stood there."""

    call: Call
    job: Job
    opened: Opened
    start: int
    position: Any
    program: Program
    watch: Watch
    profile: Profile
    wish: Wish
    pace: Pace | None
    evaluating: Evaluating | None

    @property
    def evaluates(self) -> bool:
        return self.evaluating is not None

    def look(self, look: Look) -> None:
        self.watch.look(look)
        if self.pace:
            self.pace.look()

    def save(self, step: int, state: TrainState) -> None:
        if self.job.config.fast_dev_run:
            return
        self.watch.check.before_save(step, state)
        self.watch.publish()  # a run that goes on from here writes no earlier points
        source = self.opened.source
        input_state = source.state(source.advance(self.position, step - self.start))
        self.call.checkpoints.save(Saved(step, state, input_state, self.job.config.to_json()))
        for callback in self.job.callbacks:
            callback.on_checkpoint(CheckpointEnd(step, state, self.watch.reports, self.wish))

    def evaluate(self, step: int, state: TrainState) -> TrainState:
        assert self.evaluating is not None
        with self.watch.away():
            return self.evaluating(step, state, self.wish)

    def lengthen(self, k: int) -> None:
        assert self.pace is not None
        log.info("%d steps a dispatch, for %s", k, self.job.config.iterations_per_loop)
        with self.watch.away():
            self.program.lengthen(k)
            self.pace.settle(k)
            self.program.compile({k}, self.call.check)
