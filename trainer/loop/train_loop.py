"""The loop of training: dispatches, and what the host does between two of them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import jax

from pipeline.logs import logger
from pipeline.sizes import counted
from pipeline.storage.storage import join
from trainer.callbacks import CheckpointComplete, CheckpointEnd, LoopEnd
from trainer.checkpointing.manager import Saved
from trainer.hosts.exits import ending
from trainer.loop.dispatching import Dispatches, DispatchResult, Marks, Steps
from trainer.loop.evaluate import PeriodicEvaluations
from trainer.loop.job import Job, OpenedInput
from trainer.loop.program import PEAKS
from trainer.loop.schedule import Pace, Profile, Schedule
from trainer.loop.session import Begun, Session
from trainer.loop.train_monitor import Recorder, TrainMonitor
from trainer.reports.progress import StepSize
from trainer.reports.segments import read_history
from trainer.results import Goodput, TrainResult
from trainer.step.steps import train_step
from trainer.task import Step, TrainState

log = logger("trainer")


@dataclass
class Training:
    """A run from the state `begun` to step `end`; None: to the end of the input. evaluations: those
    in between."""

    session: Session
    opened: OpenedInput
    begun: Begun
    end: int | None
    evaluations: PeriodicEvaluations | None

    def __post_init__(self) -> None:
        job = self.session.job
        config = job.config
        start = self.begun.step
        self._first_began = first_began(config.workdir, time.time()) if job.writes else None
        self._profile = Profile(config, start, self.end)
        every = [config.checkpoint_every_steps, self.evaluations and self.evaluations.every_steps]
        every = [steps for steps in every if steps]
        marks = Marks(every, self._profile.stops)
        limit = partial(job.steps_per_dispatch, self.opened, self.session.superbatch_bytes, every)
        if config.loop_seconds:
            k = 1
            self._pace = Pace(config.loop_seconds, limit)
            self._steps = Steps.timed(start, self.end, self._pace.steps, marks)
        else:
            k = limit()
            self._pace = None
            self._steps = Steps.planned(start, self.end, k, marks)
        self._program = job.program(training_step(job), self.begun.state, self.opened, k)

    def run(self) -> TrainResult:
        """Trains. Raises an Ending if the run was preempted, with all progress saved."""
        with self._dispatching() as dispatches:
            for step in dispatches:
                self.session.checkpoints.settle()
                due = self._schedule.due(step, dispatches.ended)
                if due.pause:
                    dispatches.settle()
                    self._profile.at(step)
                if due.save:
                    self._save(step, dispatches.carry)
                    self._schedule.saved(step)
                if due.evaluate:
                    assert self.evaluations
                    with self._monitor.away():
                        # the same state in other arrays: an evaluation consumes its own
                        dispatches.carry = self.evaluations(
                            step, dispatches.carry, self._schedule.stop, final=due.ends
                        )
                if due.set_pace:
                    self._set_pace()
                if self._schedule.stopped.stop:
                    break
            self._recorder.end(self._schedule.stopped)
            self.session.checkpoints.settle(wait=True)
        self._say_end(dispatches.step)
        return self._result(dispatches.step, dispatches.carry)

    @contextmanager
    def _dispatching(self) -> Iterator[Dispatches]:
        """The dispatches, with their program compiled. The history gets the start of the run, and
        why it failed."""
        session = self.session
        begun = self.begun
        job = session.job
        devices = job.placement.mesh.devices
        peak = job.config.peak_tflops or PEAKS.get(devices.flat[0].device_kind)
        flops = job.task.flops or self._program.flops() or None
        size = StepSize(job.config.global_batch_size, flops, peak and peak * devices.size)
        self._say_beginning()
        with ExitStack() as stack:
            self._recorder = stack.enter_context(
                Recorder(job, self.opened.source, session.ownership.fence)
            )
            self._recorder.start(begun.step, begun.position, begun.run, self.end)
            if self._pace:
                stack.callback(self._pace.settle, 1)  # the feeder's thread may be waiting for it
            dispatches, feeder = stack.enter_context(
                session.dispatching(
                    self._program,
                    begun.state,
                    self.opened,
                    begun.position,
                    self._steps,
                    self._record,
                    late=session.check_late,
                    ends=self.end is None,
                )
            )
            self._monitor = stack.enter_context(
                TrainMonitor(session, feeder, size, begun, self.end, self._recorder.hint)
            )
            stack.enter_context(self._profile)
            if jax.process_index() == 0:
                session.checkpoints.on_complete = self._completed
            session.activity.saved = begun.step or None
            # last: its clock begins when the program is compiled
            self._schedule = self._new_schedule()
            yield dispatches

    def _new_schedule(self) -> Schedule:
        session = self.session
        start = self.begun.step
        evaluations = self.evaluations
        # A run may resume at the end of its input, before the evaluation that was due there.
        was_evaluated = not start or session.checkpoints.was_evaluated(start)
        return Schedule(
            session.job.config,
            session.decisions,
            start,
            self.end,
            evaluated=start if was_evaluated else start - 1,
            evaluate_every=evaluations and (evaluations.every_steps or 0),
            stops=self._profile.stops,
        )

    def _record(self, result: DispatchResult) -> None:
        """Handles the result of a dispatch. NanError for a step with non-finite values, if these
        end the run."""
        self._recorder.reached(result.end)
        speed = self._monitor.observe(result)
        reports = self._monitor.reports
        self.session.call_back(
            "on_loop_end", LoopEnd(result.end, result.scalars, reports, self._schedule.stop, speed)
        )
        if self._pace:
            self._pace.observe()

    @property
    def _productive_seconds(self) -> float:
        """See Goodput; up to the last result."""
        return self.begun.productive_seconds + self._monitor.productive_seconds

    def _save(self, step: int, state: TrainState) -> None:
        """Starts to write a checkpoint; a fast_dev_run writes none."""
        config = self.session.job.config
        source = self.opened.source
        monitor = self._monitor
        if config.fast_dev_run:
            return
        with monitor.saving():
            monitor.reports.flush(now=True)  # a run that resumes here does not write earlier points
            saved = Saved(
                step,
                state,
                self.session.input_state(
                    source, source.advance(self.begun.position, step - self.begun.step)
                ),
                config.to_json(),
                productive_seconds=self._productive_seconds,
                run=self._recorder.run,
            )
            self.session.checkpoints.save(saved, monitor.check.begin(step, state))
            self.session.call_back(
                "on_checkpoint", CheckpointEnd(step, state, monitor.reports, self._schedule.stop)
            )

    def _completed(self, step: int) -> None:
        path = join(self.session.checkpoints.directory, str(step))
        self.session.call_back(
            "on_checkpoint_complete", CheckpointComplete(step, path, self._monitor.reports)
        )

    def _set_pace(self) -> None:
        """Makes later dispatches as long as the hosts agree on."""
        assert self._pace
        config = self.session.job.config
        k = self._pace.agree(self.session.exchange, config.stall_seconds)
        log.info("%d steps per dispatch, for %s", k, config.iterations_per_loop)
        with self._monitor.away():
            self._program.lengthen(k)
            self._pace.settle(k)
            with self.session.activity.doing("compiling"):
                self._program.compile({k})

    def _say_beginning(self) -> None:
        job = self.session.job
        begun = self.begun
        program = self._program
        log.info(
            "training steps %d to %s: %s parameters, batch %d on %s, %s steps per dispatch%s",
            begun.step,
            "the end of the input" if self.end is None else self.end,
            f"{sum(leaf.size for leaf in jax.tree.leaves(begun.state.variables.params)):,}",
            job.config.global_batch_size,
            counted(job.placement.mesh.size, f"{jax.default_backend()} device"),
            f"{job.config.iterations_per_loop} of" if self._pace else program.k,
            " in one program" if program.scans else "",
        )

    def _say_end(self, step: int) -> None:
        """Logs how training ended. Raises an Ending if it was preempted."""
        info = self.opened.source.info
        stopped = self._schedule.stopped
        if info.quarantine:
            bad = counted(len(info.quarantine), "bad record")
            log.warning("training: %s on this host (%s)", bad, info.on_error)
        if unlabelled := self._monitor.unlabelled:
            log.warning(
                "training: %s had no label, and no part in the loss", counted(unlabelled, "row")
            )
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

    def _result(self, step: int, state: TrainState) -> TrainResult:
        start = self.begun.step
        monitor = self._monitor
        began = self._first_began
        speed = monitor.speed(step - start) if step > start else None
        monitor.warn_of_waiting()
        return TrainResult(
            start,
            step,
            state,
            metrics=monitor.last,
            speed=speed,
            executables=len(self._program.executables),
            stopped=self._schedule.stopped.stop or None,
            goodput=None
            if began is None
            else Goodput(self._productive_seconds, time.time() - began),
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
