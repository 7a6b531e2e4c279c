"""The loop of training: dispatches, and what the host does between two of them."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import jax

from pipeline.logs import logger
from pipeline.sizes import counted
from pipeline.storage.storage import join
from trainer.callbacks import CheckpointComplete, CheckpointEnd, LoopEnd, TrainBegin
from trainer.checkpointing.manager import Saved
from trainer.hosts.exits import ending
from trainer.loop.compiled import Compiled
from trainer.loop.dispatching import Dispatches, DispatchResult, Marks, Steps
from trainer.loop.evaluate import PeriodicEvaluations
from trainer.loop.flops import PEAKS
from trainer.loop.job import Job, OpenedInput
from trainer.loop.pace import Pace
from trainer.loop.profiler import Profile
from trainer.loop.recorder import Recorder
from trainer.loop.schedule import Schedule
from trainer.loop.session import Begun, Session
from trainer.loop.train_monitor import TrainMonitor
from trainer.reports.metrics_lines import scalars_by_step
from trainer.reports.progress import StepSize
from trainer.reports.segments import read_history
from trainer.reports.workdir import eval_directory
from trainer.results import Goodput, TrainResult
from trainer.step.steps import train_step
from trainer.task import Step, TrainState

log = logger("trainer")


def train_steps(
    session: Session,
    opened: OpenedInput,
    begun: Begun,
    end: int | None,
    evaluations: PeriodicEvaluations | None,
) -> TrainResult:
    """Trains from the state `begun` to step `end`; None: to the end of the input.

    evaluations: those in between. Raises an Ending if the run was preempted, with all progress
    saved."""
    job = session.job
    config = job.config
    start = begun.step
    first = first_began(config.workdir, time.time()) if job.writes else None
    profile = Profile(config, start, end)
    every = [config.checkpoint_every_steps, evaluations and evaluations.every_steps]
    every = [steps for steps in every if steps]
    marks = Marks(every, profile.stops)
    limit = partial(job.steps_per_dispatch, opened, session.superbatch_bytes, every)
    program = job.program(training_step(job), (), begun.state, opened)
    pace = Pace(config.loop_seconds, limit) if config.loop_seconds else None
    if not pace:
        program.lengthen(limit())
    steps = Steps(start, end, pace.steps if pace else program.k, marks)
    _say_beginning(job, begun, end, program, pace)
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(job, opened.source, session.ownership.fence))
        recorder.start(start, begun.position, begun.run, end)
        if pace:
            stack.callback(pace.settle, 1)  # the feeder's thread may be waiting for it
        feeder = stack.enter_context(
            session.feeding(
                program,
                opened,
                begun.position,
                steps,
                late=session.check_late,
                ends=end is None,
            )
        )
        monitor = stack.enter_context(
            TrainMonitor(session, feeder, _step_size(job, program), begun, end, recorder.hint)
        )
        stack.enter_context(profile)
        # A run may resume at the end of its input, before the evaluation that was due there.
        was_evaluated = not start or session.checkpoints.was_evaluated(start)
        # last: its clock begins when the program is compiled
        schedule = Schedule(
            config,
            session.decisions,
            start,
            end,
            evaluated=start if was_evaluated else start - 1,
            evaluate_every=evaluations and (evaluations.every_steps or 0),
            stops=profile.stops,
        )
        training = Training(
            session,
            opened,
            begun,
            end,
            evaluations,
            program,
            pace,
            profile,
            recorder,
            monitor,
            schedule,
        )
        if jax.process_index() == 0:
            session.checkpoints.on_complete = training.completed

        def earlier(name: str | None) -> Mapping[int, Mapping[str, float]]:
            if not (evaluations and name in evaluations.opened and job.writes):
                return {}
            return scalars_by_step(join(config.workdir, eval_directory(name)), start + 1)

        session.call_back("on_train_begin", TrainBegin(start, earlier, schedule.stop))
        dispatches = Dispatches(
            *(begun.state, start, feeder, program, training.record), session.activity
        )
        training.run(dispatches)
    return training.result(dispatches.step, dispatches.carry, first)


@dataclass
class Training:
    """A run in its session: what happens between two dispatches, and at the end."""

    session: Session
    opened: OpenedInput
    begun: Begun
    end: int | None
    evaluations: PeriodicEvaluations | None
    program: Compiled
    pace: Pace | None
    profile: Profile
    recorder: Recorder
    monitor: TrainMonitor
    schedule: Schedule

    def run(self, dispatches: Dispatches) -> None:
        """Trains."""
        schedule = self.schedule
        for step in dispatches:
            self.session.checkpoints.settle()
            due = schedule.due(step, dispatches.ended)
            if due.pause:
                dispatches.settle()
                self.profile.at(step)
            if due.save:
                self._save(step, dispatches.carry)
                schedule.saved(step)
            if due.evaluate:
                assert self.evaluations
                with self.monitor.away():
                    self.evaluations(step, dispatches.carry, schedule.stop, final=due.ends)
            if due.set_pace:
                self._set_pace()
            if schedule.stopped.stop:
                break
        self.recorder.end(schedule.stopped)
        self.session.checkpoints.settle(wait=True)

    def record(self, result: DispatchResult) -> None:
        """Handles the result of a dispatch. NanError for a step with non-finite values, if these
        end the run."""
        self.recorder.reached(result.end)
        speed = self.monitor.observe(result)
        reports = self.monitor.reports
        self.session.call_back(
            "on_loop_end", LoopEnd(result.end, result.scalars, reports, self.schedule.stop, speed)
        )
        if self.pace:
            self.pace.observe()

    @property
    def _productive_seconds(self) -> float:
        """See Goodput; up to the last result."""
        return self.begun.productive_seconds + self.monitor.productive_seconds

    def _save(self, step: int, state: TrainState) -> None:
        """Starts to write a checkpoint; a fast_dev_run writes none."""
        session = self.session
        source = self.opened.source
        monitor = self.monitor
        config = session.job.config
        if config.fast_dev_run:
            return
        with monitor.saving():
            monitor.reports.flush(now=True)  # a run that resumes here does not write earlier points
            position = source.advance(self.begun.position, step - self.begun.step)
            saved = Saved(
                step,
                state,
                session.input_state(source, position),
                config.to_json(),
                productive_seconds=self._productive_seconds,
                run=self.recorder.run,
            )
            session.checkpoints.save(saved, self._in_background(step, state))
            session.call_back(
                "on_checkpoint", CheckpointEnd(step, state, monitor.reports, self.schedule.stop)
            )

    def _in_background(self, step: int, state: TrainState) -> Callable[[], None]:
        """What a save does before the checkpoint is complete, in a thread of its own."""
        session, source = self.session, self.opened.source
        verify = self.monitor.check.begin(step, state)
        state_of = getattr(source, "iterator_state", None)

        def run() -> None:
            verify()
            if hasattr(source, "iterator_state"):
                data = state_of and state_of.data
                session.iterator_files(source).write(step, data, session.checkpoints.steps)

        return run

    def completed(self, step: int) -> None:
        """Tells the callbacks of a complete checkpoint."""
        path = join(self.session.checkpoints.directory, str(step))
        self.session.call_back(
            "on_checkpoint_complete", CheckpointComplete(step, path, self.monitor.reports)
        )

    def _set_pace(self) -> None:
        """Makes later dispatches as long as the hosts agree on."""
        assert self.pace
        config = self.session.job.config
        k = self.pace.agree(self.session.exchange, config.stall_seconds)
        log.info("%d steps per dispatch, for %s", k, config.iterations_per_loop)
        with self.monitor.away():
            self.program.lengthen(k)
            self.pace.settle(k)
            with self.session.activity.doing("compiling"):
                self.program.compile({k})

    def result(self, step: int, state: TrainState, first: float | None) -> TrainResult:
        """Logs how training ended after `step`. first: when it first began, on the host that
        writes. Raises an Ending if it was preempted."""
        start = self.begun.step
        monitor = self.monitor
        stopped = self.schedule.stopped
        quarantine = self.opened.source.info.quarantine
        if quarantine:
            bad = counted(len(quarantine), "bad record")
            on_error = self.opened.source.info.on_error
            log.warning("training: %s on this host (%s)", bad, on_error)
        if monitor.unlabelled:
            rows = counted(monitor.unlabelled, "row")
            log.warning("training: %s had no label, and no part in the loss", rows)
        how = "and nothing is saved"
        resume = "there was nothing to save: run the same command again"
        if step and not self.session.job.config.fast_dev_run:
            how = "which is saved"
            resume = f"step {step} is saved, and the same command resumes from there"
        if stopped.stop:
            end = self.end or "an input without a known end"
            log.warning("%s: training ends at step %d of %s, %s", stopped.stop, step, end, how)
        elif self.end is None:
            log.info("the input ended at step %d", step)
        if stopped.preempted:
            raise ending(f"{stopped.stop}; {resume}", stopped.interrupted, together=True)
        checkpoints = self.session.checkpoints
        best = checkpoints.best() if self.session.job.writes else None
        if best not in (None, step):
            path = join(checkpoints.directory, str(best))
            metric = self.session.job.config.keep_best
            log.info("the best checkpoint by %s: --checkpoint-path %s", metric, path)
        speed = monitor.speed(step - start) if step > start else None
        monitor.warn_of_waiting()
        return TrainResult(
            start,
            step,
            state,
            metrics=monitor.last,
            speed=speed,
            executables=len(self.program.executables),
            stopped=stopped.stop or None,
            weighted=self.session.job.task.sample_weight is not None,
            goodput=None
            if first is None
            else Goodput(self._productive_seconds, time.time() - first),
        )


def _step_size(job: Job, program: Compiled) -> StepSize:
    devices = job.placement.mesh.devices
    peak = job.config.peak_tflops or PEAKS.get(devices.flat[0].device_kind)
    flops = job.task.flops or program.flops() or None
    return StepSize(job.config.global_batch_size, flops, peak and peak * devices.size)


def _say_beginning(
    job: Job, begun: Begun, end: int | None, program: Compiled, pace: Pace | None
) -> None:
    log.info(
        "training steps %d to %s: %s parameters, batch %d on %s, %s steps per dispatch%s%s",
        begun.step,
        "the end of the input" if end is None else end,
        f"{sum(leaf.size for leaf in jax.tree.leaves(begun.state.variables.params)):,}",
        job.config.global_batch_size,
        counted(job.placement.mesh.size, f"{jax.default_backend()} device"),
        f"{job.config.iterations_per_loop} of" if pace else program.k,
        " in one program" if program.scans else "",
        ", weighted loss" if job.task.sample_weight else "",
    )


def first_began(workdir: str, now: float) -> float:
    """When training first began in the work directory, as time.time(): `now` the first time.

    Raises CheckpointError if its history is damaged."""
    starts = read_history(workdir).starts
    return datetime.fromisoformat(starts[0].time).timestamp() if starts else now


def training_step(job: Job) -> Step:
    """The step function, as configured."""
    config = job.config
    placement = job.placement
    return train_step(
        job.traced_task,
        config.on_nan,
        accumulate=config.accumulate,
        unroll=placement.on_cpu,
        ema_decay=config.ema_decay,
        axes=placement.axes,
        apart=placement if job.task.independent_rows else None,
    )
