"""One run of training, from the newest checkpoint to its end."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from pipeline.logs import logger
from trainer.events.goodput import TimeSpent, first_began
from trainer.events.profile import Profile
from trainer.events.progress import StepSize
from trainer.exits import ending
from trainer.inputs import InputFn
from trainer.loop.dispatch_plan import Marks, Steps
from trainer.loop.dispatching import run
from trainer.loop.flops import peak_tflops
from trainer.loop.program import Program
from trainer.modes.alternating import Alternating
from trainer.modes.beginning import new_state, restored, training_step
from trainer.modes.between_dispatches import Actions, BetweenDispatches, StopRequest
from trainer.modes.goal import check_ends
from trainer.modes.pace import Pace
from trainer.modes.preflight import agree_on
from trainer.modes.recording import Recorder
from trainer.modes.session import Session, open_session
from trainer.modes.training_monitor import TrainingMonitor
from trainer.results import TrainResult
from trainer.setup import Opened, Setup
from trainer.state import TrainState
from trainer.warm_start.config import WarmStart

__all__ = ["train"]

log = logger("trainer")


def train(
    setup: Setup,
    input_fn: InputFn,
    goal: Callable[[int], int | None],
    warm_start: WarmStart,
    alternating: Callable[[Session], Alternating] | None = None,
) -> TrainResult:
    """See Trainer.train. goal: the step of the newest checkpoint -> the last step to train; None for that of the input.
    alternating: makes the evaluations in between."""
    config = setup.config
    with open_session(config, saves=not config.fast_dev_run) as session:
        with session.preemption.leavable():
            session.own(config)
            start = 0 if config.fast_dev_run else session.checkpoints.resume_step()
            end = config.fast_dev_run or goal(start)
            opened = setup.open("train", input_fn, start) if end is None or start < end else None
            check_ends(opened and opened.source, end)
            evaluating = alternating(session) if alternating else None
        inputs = [*([opened] if opened else []), *(evaluating.opened.values() if evaluating else [])]
        facts = {"eval_every_steps": evaluating and evaluating.every_steps, "warm_start": str(warm_start)}
        agree_on(session.watchdog, setup, inputs, start, end, **facts)
        if evaluating and start:
            evaluating.make_up(start, end)
        if opened:
            result = _train_run(session, setup, opened, start, end, evaluating, warm_start)
        else:
            how = "Raise it to continue; to train with other settings or another model, give another workdir"
            log.warning("nothing to train: the checkpoint of step %d has reached max_steps=%d. %s", start, end, how)
            result = TrainResult(start, start, None, {}, None, 0)
        return replace(result, evaluations=tuple(evaluating.results)) if evaluating else result


def _train_run(
    session: Session,
    setup: Setup,
    opened: Opened,
    start: int,
    end: int | None,
    evaluating: Alternating | None,
    warm_start: WarmStart,
) -> TrainResult:
    """Trains steps start..end, from the checkpoint of `start` if above 0. end: None for that of the input. Raises an
    Ending, with all progress saved."""
    config = setup.config
    with session.preemption.leavable():
        records_time = jax.process_index() == 0 and not config.fast_dev_run
        began = first_began(config.workdir, time.time()) if records_time else None
        begun = _begin(session, setup, opened, start, warm_start)
    spent = TimeSpent(began, begun.productive_seconds)
    profile = Profile(config, start, end)
    every = [n for n in (config.checkpoint_every_steps, evaluating and evaluating.every_steps) if n]
    pace = Pace(config.loop_seconds, partial(setup.steps_per_dispatch, opened, every)) if config.loop_seconds else None
    k = 1 if pace else setup.steps_per_dispatch(opened, every)
    program = setup.program(training_step(setup), begun.state, opened, k)
    size = _step_size(setup, program)
    marks = Marks(every, profile.stops)
    steps = Steps.timed(start, end, pace.steps, marks) if pace else Steps.planned(start, end, k, marks)
    devices = setup.placement.mesh.size
    log.info(
        "training steps %d to %s: %s parameters, batch %d on %d %s %s, %s steps per dispatch%s",
        *(start, "the end of the input" if end is None else end),
        *(f"{sum(leaf.size for leaf in jax.tree.leaves(begun.state.variables.params)):,}", opened.global_batch),
        *(devices, jax.default_backend(), "device" if devices == 1 else "devices"),
        *(f"{config.iterations_per_loop} of" if pace else k, " in one program" if program.scans else ""),
    )

    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(setup, opened.source, session.ownership.fence))
        recorder.start(start, begun.position, begun.saved_by)
        if pace:
            stack.callback(pace.settle, 1)  # the feeder's thread may be waiting for it
        common = session.common_end(opened, ends=end is None)
        checks = session.check, session.check_late
        feeder = stack.enter_context(setup.feeding(program, opened, begun.position, steps, *checks, common))
        stop_request = StopRequest()
        monitor = stack.enter_context(
            TrainingMonitor(
                *(setup, feeder, size, begun.state, start, end),
                *(stop_request, session.ownership.fence, recorder.hint),
            )
        )
        stack.enter_context(profile)
        actions = Actions(
            *(session, setup, opened, start, begun.position, spent, program, monitor),
            *(recorder, profile, stop_request, pace, evaluating),
        )
        if jax.process_index() == 0:
            session.checkpoints.on_complete = actions.completed
        between = BetweenDispatches(actions, end)
        state, step = run(begun.state, start, feeder, program, actions.observe, between)
        recorder.end(between.stopped)
        session.checkpoints.settle(wait=True)
    if bad := opened.source.info.quarantine:
        log.warning("training: %d bad records on this host (%s)", len(bad), opened.source.info.on_error)
    stopped, saved = between.stopped.stop, step and not config.fast_dev_run
    if stopped:
        how = "which is saved" if saved else "and nothing is saved"
        log.warning("%s: training ends at step %d of %s, %s", stopped, step, end or "an input without a known end", how)
    if between.stopped.preempted:
        done = f"step {step} is saved, and the same command resumes from there"
        done = done if saved else "there was nothing to save: run the same command again"
        raise ending(f"{stopped}; {done}", between.stopped.interrupted, together=True)
    executables, speed = len(program.executables), monitor.speed(step - start) if step > start else None
    if end is None and not stopped:
        log.info("the input ended at step %d", step)
    goodput = spent.goodput(monitor.productive_seconds, time.time())
    return TrainResult(start, step, state, monitor.last, speed, executables, stopped or None, goodput=goodput)


def _step_size(setup: Setup, program: Program) -> StepSize:
    devices = setup.placement.mesh.devices
    peak = setup.config.peak_tflops or peak_tflops(devices.flat[0])
    flops = setup.task.flops or program.flops() or None
    return StepSize(setup.config.global_batch_size, flops, peak and peak * devices.size)


@dataclass(frozen=True)
class _Begun:
    """The state and the input's position before the first step. saved_by: the run that saved them, if it is known."""

    state: TrainState
    position: Any
    productive_seconds: float | None
    saved_by: str | None


def _begin(session: Session, setup: Setup, opened: Opened, start: int, warm_start: WarmStart) -> _Begun:
    if not opened.resumable:
        (log.warning if start else log.info)(
            "the input is a plain iterable, which has no position: a resumed run starts it from its beginning, unless "
            "input_fn starts it at InputContext.start_step",
        )
    if start == 0:
        return _Begun(new_state(session, setup, opened, warm_start), opened.source.info.start, 0.0, None)
    if warm_start.init_from:
        log.info("init_from=%s is ignored: the work directory has a checkpoint", warm_start.init_from)
    saved, position = restored(session, setup, opened, start)
    changed = saved.changes(setup.config.to_json())
    log.info("resuming from the checkpoint of step %d%s", start, "; changed: " * bool(changed) + ", ".join(changed))
    return _Begun(saved.state, position, saved.productive_seconds, saved.run)
