"""Training, from the newest checkpoint to the last step, or to the end of the input."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import jax

from pipeline.checks import check_positive_int
from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.sizes import counted
from trainer.checkpointing.kept_data import as_begun, as_in_run, keep
from trainer.checkpointing.warm_start import WarmStart
from trainer.hosts.exits import ending
from trainer.inputs import InputFn
from trainer.loop.dispatching import Marks, Steps, run
from trainer.loop.evaluate import PeriodicEvaluations
from trainer.loop.feed import Feeder
from trainer.loop.job import Job, OpenedInput
from trainer.loop.program import PEAKS, Program
from trainer.loop.session import Begun, Session, begin, open_session
from trainer.loop.train_loop import Pace, TrainLoop, first_began
from trainer.loop.train_monitor import Recorder, TrainMonitor
from trainer.reports.profile import Profile
from trainer.reports.progress import NOTABLE, StepSize
from trainer.results import TrainResult
from trainer.step.steps import train_step
from trainer.task import Step

NOTABLE_SECONDS = 5.0  # of waiting for the input

log = logger("trainer")


def train(
    job: Job,
    input_fn: InputFn,
    warm_start: WarmStart,
    *,
    steps: int | None,
    max_steps: int | None,
    max_epochs: int | None,
    eval_inputs: Mapping[str | None, InputFn] | None = None,
    eval_every_steps: int | None = None,
) -> TrainResult:
    """See Trainer.train and Trainer.train_and_evaluate."""
    lengths = {"steps": steps, "max_steps": max_steps, "max_epochs": max_epochs}
    if len(given := [f"{name}={length}" for name, length in lengths.items() if length is not None]) > 1:
        raise OptionError(
            f"{' and '.join(given)} are both given. Give one: steps counts from the newest checkpoint, the others "
            "count from the very first run."
        )
    check_positive_int("steps", steps)
    config = replace(job.config, max_steps=max_steps, max_epochs=max_epochs) if given else job.config
    with open_session(job) as session:
        with session.supervisor.leaving():
            session.own()
            start = 0 if config.fast_dev_run else session.checkpoints.resume_step()
            end = config.fast_dev_run or (start + steps if steps else None if config.max_epochs else config.max_steps)
            session.describe = as_in_run(config.workdir) if start else as_begun(warm_start, job.target)
            opened = session.open("train", input_fn, start) if end is None or start < end else None
            if opened and end is None and config.max_epochs:
                records = opened.source.info.num_records
                end = config.last_step(records)
                log.info("max_epochs=%d of %s records: training ends at step %d", config.max_epochs, records, end)
                opened = opened if start < (end or 0) else None
            if opened and opened.source.info.endless and end is None:
                raise OptionError(
                    "no end is given, and the input never ends. Give steps, max_steps or max_epochs to train, or "
                    "max_steps or max_epochs in the TrainerConfig."
                )
            if opened:
                description = opened.description
                session.describe = lambda _: description
            evaluations = PeriodicEvaluations(session, eval_inputs, eval_every_steps) if eval_inputs else None
        inputs = [*([opened] if opened else []), *(evaluations.opened.values() if evaluations else [])]
        session.agree_on(inputs, start, end, eval_every_steps=eval_every_steps, warm_start=str(warm_start))
        if opened and not start and not config.fast_dev_run and jax.process_index() == 0:
            session.ownership.fence()
            keep(config.workdir, opened.description)
        if evaluations and start:
            evaluations.make_up(start, end)
        if opened:
            with session.supervisor.leaving():
                begun = _begin(session, opened, start, warm_start)
            result = _train_steps(session, opened, begun, end, evaluations)
            if result.speed and jax.process_index() == 0 and not config.fast_dev_run:
                session.ownership.fence()
                result.write(config.workdir)
        else:
            how = "Give more steps to continue; to train with other settings or another model, give another workdir"
            log.warning(
                "nothing to train: the checkpoint of step %d has reached the last step, %d. %s", start, end, how
            )
            result = TrainResult(start, start, state=None, metrics={}, speed=None, executables=0)
        return replace(result, evaluations=tuple(evaluations.results)) if evaluations else result


def _begin(session: Session, opened: OpenedInput, start: int, warm_start: WarmStart) -> Begun:
    if not opened.resumable:
        (log.warning if start else log.info)(
            "the input is a plain iterable, which has no position: a resumed run starts it from its beginning, unless "
            "input_fn starts it at InputContext.start_step",
        )
    if start and warm_start.init_from:
        log.info("init_from=%s is ignored: the work directory has a checkpoint", warm_start.init_from)
    begun = begin(session, opened, start, warm_start)
    if start:
        changed = "; changed: " * bool(begun.changes) + ", ".join(begun.changes)
        log.info("resuming from the checkpoint of step %d%s", start, changed)
    return begun


def _train_steps(
    session: Session, opened: OpenedInput, begun: Begun, end: int | None, evaluations: PeriodicEvaluations | None
) -> TrainResult:
    """Trains up to step `end`; None: to the end of the input. Raises an Ending, with all progress saved."""
    start = begun.step
    with _open_loop(session, opened, begun, end, evaluations) as (loop, feeder):
        session.activity.saved = start or None
        state, step = run(begun.state, start, feeder, loop.program, on_result=loop.observe, between=loop)
        loop.recorder.end(loop.stopped)
        session.checkpoints.settle(wait=True)
    _say_end(loop, step)
    speed = loop.monitor.speed(step - start) if step > start else None
    waited = speed.input_wait * (step - start) / speed.steps_per_second if speed else 0.0
    if speed and speed.input_wait > NOTABLE and waited > NOTABLE_SECONDS:
        text = "training waited for its input for %.0f %% of the time. input_workers and cache may help"
        log.warning(f"{text}: see docs/performance.md", 100 * speed.input_wait)
    return TrainResult(
        start,
        step,
        state,
        metrics=loop.monitor.last,
        speed=speed,
        executables=len(loop.program.executables),
        stopped=loop.stopped.stop or None,
        goodput=loop.goodput(time.time()),
    )


@contextmanager
def _open_loop(
    session: Session, opened: OpenedInput, begun: Begun, end: int | None, evaluations: PeriodicEvaluations | None
) -> Iterator[tuple[TrainLoop, Feeder]]:
    """The loop, with its program compiled, and the chunks to train on."""
    job, config, start = session.job, session.job.config, begun.step
    records_time = jax.process_index() == 0 and not config.fast_dev_run
    began = first_began(config.workdir, time.time()) if records_time else None
    profile = Profile(config, start, end)
    every = [n for n in (config.checkpoint_every_steps, evaluations and evaluations.every_steps) if n]
    marks = Marks(every, profile.stops)
    pace = Pace(config.loop_seconds, partial(job.steps_per_dispatch, opened, every)) if config.loop_seconds else None
    k = 1 if pace else job.steps_per_dispatch(opened, every)
    program = job.program(training_step(job), begun.state, opened, k)
    steps = Steps.timed(start, end, pace.steps, marks) if pace else Steps.planned(start, end, k, marks)
    size = _step_size(job, program)  # before the log line: tracing may fail
    _say_beginning(job, begun, end, f"{config.iterations_per_loop} of" if pace else k, program.scans)
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(job, opened.source, session.ownership.fence))
        recorder.start(start, begun.position, begun.run)
        if pace:
            stack.callback(pace.settle, 1)  # the feeder's thread may be waiting for it
        feeding = session.feeding(program, opened, begun.position, steps, late=session.check_late, ends=end is None)
        feeder = stack.enter_context(feeding)
        monitor = stack.enter_context(TrainMonitor(session, feeder, size, begun, end, hint=recorder.hint))
        stack.enter_context(profile)
        loop = TrainLoop(
            session,
            opened,
            begun,
            end,
            program=program,
            monitor=monitor,
            recorder=recorder,
            profile=profile,
            began=began,
            pace=pace,
            evaluations=evaluations,
        )
        yield loop, feeder


def training_step(job: Job) -> Step:
    """The step function, as configured."""
    config, placement = job.config, job.placement
    return train_step(
        job.traced_task,
        config.on_nan,
        accumulate=config.accumulate,
        unroll=placement.on_cpu,
        ema_decay=config.ema_decay,
        axes=placement.axes,
        apart=placement if job.task.independent_rows else None,
    )


def _step_size(job: Job, program: Program) -> StepSize:
    devices = job.placement.mesh.devices
    peak = job.config.peak_tflops or PEAKS.get(devices.flat[0].device_kind)
    flops = job.task.flops or program.flops() or None
    return StepSize(job.config.global_batch_size, flops, peak and peak * devices.size)


def _say_beginning(job: Job, begun: Begun, end: int | None, length: object, scans: bool) -> None:
    on = counted(job.placement.mesh.size, f"{jax.default_backend()} device")
    parameters = sum(leaf.size for leaf in jax.tree.leaves(begun.state.variables.params))
    log.info(
        "training steps %d to %s: %s parameters, batch %d on %s, %s steps per dispatch%s",
        begun.step,
        "the end of the input" if end is None else end,
        f"{parameters:,}",
        job.config.global_batch_size,
        on,
        length,
        " in one program" if scans else "",
    )


def _say_end(loop: TrainLoop, step: int) -> None:
    """Logs how training ended. Raises an Ending if it was preempted."""
    config, source, stopped = loop.session.job.config, loop.opened.source, loop.stopped
    if bad := source.info.quarantine:
        log.warning("training: %s on this host (%s)", counted(len(bad), "bad record"), source.info.on_error)
    if unlabelled := loop.monitor.unlabelled:
        log.warning("training: %s had no label, and no part in the loss", counted(unlabelled, "row"))
    saved = step and not config.fast_dev_run
    if stopped.stop:
        how, end = "which is saved" if saved else "and nothing is saved", loop.end or "an input without a known end"
        log.warning("%s: training ends at step %d of %s, %s", stopped.stop, step, end, how)
    elif loop.end is None:
        log.info("the input ended at step %d", step)
    if stopped.preempted:
        done = f"step {step} is saved, and the same command resumes from there"
        done = done if saved else "there was nothing to save: run the same command again"
        raise ending(f"{stopped.stop}; {done}", stopped.interrupted, together=True)
