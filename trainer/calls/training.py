"""One run of training: from the newest checkpoint to its end, with everything that happens on the way."""

import logging
from contextlib import ExitStack
from typing import Any

import jax

from trainer.callbacks import CheckpointEnd
from trainer.calls.call import Call
from trainer.calls.pace import Pace
from trainer.calls.pausing import Between, Evaluating, TrainingPauses, Wish
from trainer.calls.watch import Watch
from trainer.checkpointing.checkpoint import Saved
from trainer.events.profile import Profile
from trainer.exits import Preempted
from trainer.inputs import on_error_of
from trainer.job import Job, Opened
from trainer.loop.plan import Marks, Steps
from trainer.loop.run import Look, run
from trainer.results import TrainResult
from trainer.state import TrainState
from trainer.steps import train_step

__all__ = ["train_run"]

log = logging.getLogger("trainer")


def train_run(
    call: Call, job: Job, opened: Opened, start: int, end: int, evaluating: Evaluating | None = None
) -> TrainResult:
    """Trains steps start..end, from the checkpoint of `start` if that is above 0.

    Raises Preempted, with all that was done saved, when a process of the run was asked to end."""
    config, source = job.config, opened.source
    state, position = _begin(call, job, opened, start)
    profile = Profile(config, start, end)
    every_eval = evaluating.every_steps if evaluating else None
    every = [n for n in (config.checkpoint_every_steps, every_eval) if n]
    marks = Marks(every, profile.stops)
    pace = None
    if config.loop_seconds:
        pace = Pace(config.loop_seconds, lambda steps: job.steps_a_dispatch(opened, every, steps))
    k = 1 if pace else job.steps_a_dispatch(opened, every)
    program = job.program(train_step(job.task, config.on_nan), state, opened, k)
    steps = Steps.timed(start, end, pace.steps, marks) if pace else Steps.planned(start, end, k, marks)
    log.info(
        "training steps %d to %d: batch %d on %d %s device(s), %s steps a dispatch%s",
        *(start, end, opened.global_batch, job.placement.mesh.size, jax.default_backend()),
        *(f"{config.iterations_per_loop} of" if pace else k, " in one program" if program.scans else ""),
    )

    with ExitStack() as stack:
        if pace:
            stack.callback(pace.settle, 1)  # the feeder's thread may wait for it
        feeder = stack.enter_context(job.feeding(program, opened, position, steps, call.check))
        wish = Wish()
        watch = stack.enter_context(Watch(job, feeder, state, start, end, wish))

        def save(step: int, state: TrainState) -> None:
            if config.fast_dev_run:
                return
            watch.publish()  # a run that goes on from here writes no earlier points
            input_state = source.state(source.advance(position, step - start))
            call.checkpoints.save(Saved(step, state, input_state, config.to_json()))
            for callback in job.callbacks:
                callback.on_checkpoint(CheckpointEnd(step, state, watch.reports, wish))

        def evaluate(step: int, state: TrainState) -> TrainState:
            assert evaluating is not None
            with watch.away():
                return evaluating(step, state, wish)

        def lengthen(k: int) -> None:
            assert pace is not None
            log.info("%d steps a dispatch, for %s", k, config.iterations_per_loop)
            with watch.away():
                program.lengthen(k)
                pace.settle(k)
                program.compile({k}, call.check)

        def look(look: Look) -> None:
            watch.look(look)
            if pace:
                pace.look()

        between = Between(save, lengthen, stack.enter_context(profile), evaluate if evaluating else None)
        pauses = TrainingPauses(call, config, start, end, between, wish, every_eval, pace)
        state, step = run(state, start, feeder, program, look, pauses)
    if bad := getattr(source, "quarantine", ()):  # a pipeline dataset's
        log.warning("training: %d bad records were met on this host (%s)", len(bad), on_error_of(source))
    stopped = pauses.stopped.stop
    if stopped:
        log.warning("%s: training ends at step %d of %d, which is saved", stopped, step, end)
    if pauses.stopped.preempted:
        raise Preempted(f"{stopped}; step {step} is saved, and the same command goes on from there", together=True)
    executables, speed = len(program.executables), watch.speed(step - start)
    return TrainResult(start, step, state, watch.last, speed, executables, stopped or None)


def _begin(call: Call, job: Job, opened: Opened, start: int) -> tuple[TrainState, Any]:
    config, source = job.config, opened.source
    if not opened.resumable:
        log.info("the input is a plain iterable: a resumed run starts it anew, it has no position to go on from")
    if start == 0:
        return job.fresh_state(opened, call.check), source.start
    saved = call.checkpoints.restore(start, job.abstract_state(opened))
    now = config.to_json()
    changed = [f"{key} {saved.config[key]!r} -> {now[key]!r}" for key in now if saved.config.get(key) != now[key]]
    log.info("going on from the checkpoint of step %d%s", start, "; changed: " * bool(changed) + ", ".join(changed))
    return saved.state, source.restore(saved.input_state)
