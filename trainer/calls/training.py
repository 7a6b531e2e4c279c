"""One run of training: from the newest checkpoint to its end, with everything that happens at a look and at a mark."""

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainer.calls.call import Call
from trainer.calls.finite import FiniteCheck
from trainer.calls.pace import Pace
from trainer.calls.pausing import Between, Evaluating, TrainingPauses
from trainer.checkpointing.checkpoint import Saved
from trainer.events.profile import Profile
from trainer.events.progress import ProgressLine, Speed
from trainer.events.reports import Reports
from trainer.exits import Preempted
from trainer.inputs import on_error_of
from trainer.job import Job, Opened
from trainer.loop.feed import Feeder
from trainer.loop.plan import Marks, Steps
from trainer.loop.run import Look, run
from trainer.state import TrainState
from trainer.steps import BAD_LEAF, train_step

__all__ = ["TrainResult", "train_run"]

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class TrainResult:
    """A call of train: from `start_step` to `step`, and the last step's metrics.

    state and speed are None where there was nothing left to do. Speed is of the loop alone, without compilation.
    stopped: why it ended before its goal; None if it did not."""

    start_step: int
    step: int
    state: TrainState | None
    metrics: dict[str, float]
    speed: Speed | None
    executables: int
    stopped: str | None = None


def train_run(
    call: Call, job: Job, opened: Opened, start: int, end: int, evaluating: Evaluating | None = None
) -> TrainResult:
    """Trains steps start..end, from the checkpoint of `start` if that is above 0.

    Raises Preempted, with all that was done saved, when a process of the run was asked to end."""
    config, source = job.config, opened.source
    state, position = _begin(call, job, opened, start)
    profile = Profile(config, start, end)
    evaluate_every = evaluating.every_steps if evaluating else None
    every = [every for every in (config.checkpoint_every_steps, evaluate_every) if every]
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
        watch = stack.enter_context(_Watch(job, feeder, state, start, end))

        def save(step: int, state: TrainState) -> None:
            if config.fast_dev_run:
                return
            watch.publish()  # a run that goes on from here writes no earlier points
            input_state = source.state(source.advance(position, step - start))
            call.checkpoints.save(Saved(step, state, input_state, config.to_json()))

        def lengthen(k: int) -> None:
            log.info("%d steps a dispatch, for %s", k, config.iterations_per_loop)
            program.lengthen(k)
            if pace:
                pace.settle(k)
            program.compile({k}, call.check)

        def look(look: Look) -> None:
            watch.look(look)
            if pace:
                pace.look()

        between = Between(save, lengthen, stack.enter_context(profile), evaluating)
        pauses = TrainingPauses(call, config, start, end, between, pace)
        state, step = run(state, start, feeder, program, look, pauses)
    if bad := getattr(source, "quarantine", ()):  # a pipeline dataset's
        log.warning("training: %d bad records were met on this host (%s)", len(bad), on_error_of(source))
    if stopped := pauses.stopped.stop:
        log.warning("%s: training ends at step %d of %d, which is saved", stopped, step, end)
    if pauses.stopped.preempted:
        raise Preempted(f"{stopped}; step {step} is saved, and the same command goes on from there", together=True)
    executables = len(program.executables)
    return TrainResult(start, step, state, watch.last, watch.speed(step - start), executables, stopped or None)


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


class _Watch:
    """What the host does with every look: checks for NaN, writes TensorBoard's points, moves the progress line."""

    def __init__(self, job: Job, feeder: Feeder, state: TrainState, start: int, end: int) -> None:
        self._check = FiniteCheck(job.config.on_nan, state)
        self.last: dict[str, float] = {}
        self._feeder, self._start, self._batch = feeder, start, job.config.global_batch_size
        self._reports = Reports(job.config, "train", after=start)
        self._line = ProgressLine(start, end, self._batch, job.config.log_every) if jax.process_index() == 0 else None
        self._began = time.perf_counter()
        self._seconds = 0.0

    def look(self, look: Look) -> None:
        bad = look.scalars.pop(BAD_LEAF, np.full(look.length, -1))
        self._write(look, self._check.reported(bad))
        self._check.look(look, bad)
        self._seconds = time.perf_counter() - self._began
        self.last = {name: float(values[-1]) for name, values in look.scalars.items()}

    def _write(self, look: Look, count: int) -> None:
        if self._line is None:
            return
        columns = {name: values.tolist() for name, values in look.scalars.items()}
        rows = [{name: column[i] for name, column in columns.items()} for i in range(count)]
        speed = self._line.update(look.start + look.length, columns["loss"][-1], self._feeder.wait_seconds)
        if speed is not None:
            rows[-1] |= speed.scalars()
        for step, row in enumerate(rows, look.start + 1):
            self._reports.scalars(step, row)
        if speed is not None:
            self._reports.flush()

    def speed(self, steps: int) -> Speed:
        """Over `steps` steps, from the first dispatch to the last look."""
        return Speed.of(steps, self._batch, self._seconds, self._feeder.wait_seconds)

    def publish(self) -> None:
        """Lets readers see all points so far."""
        self._reports.flush(now=True)

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._line is not None:
            self._line.close()
        self._reports.__exit__(kind, error, trace)
