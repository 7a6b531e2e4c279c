"""One run of training: from the newest checkpoint to its end, with everything that happens at a look and at a mark."""

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pipeline.shards.errors import NanError, StorageError
from pipeline.shards.storage import join
from trainer.checkpointing.checkpoint import Checkpoints, Saved
from trainer.events.progress import ProgressLine, Speed
from trainer.events.writer import EventWriter
from trainer.inputs import on_error_of
from trainer.job import Job, Opened
from trainer.loop.feed import Feeder
from trainer.loop.plan import plan
from trainer.loop.run import Look, run
from trainer.state import TrainState, init_state
from trainer.steps import FINITE, train_step

__all__ = ["TrainResult", "train_run"]

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class TrainResult:
    """A call of train: from `start_step` to `step`, and the last step's metrics.

    state and speed are None where there was nothing left to do. Speed is of the loop alone, without compilation."""

    start_step: int
    step: int
    state: TrainState | None
    metrics: dict[str, float]
    speed: Speed | None
    executables: int


def train_run(job: Job, checkpoints: Checkpoints, opened: Opened, start: int, end: int) -> TrainResult:
    """Trains steps start..end, from the checkpoint of `start` if that is above 0."""
    state, position = _begin(job, checkpoints, opened, start)
    config, source = job.config, opened.source
    every = config.checkpoint_every_steps
    marks = [every] if every else []
    k = job.steps_a_dispatch(opened, marks)
    program = job.program(train_step(job.task), state, opened, k)
    lengths = list(plan(start, end, k, marks))
    log.info(
        "training steps %d to %d: batch %d on %d %s device(s), %d steps a dispatch%s",
        *(start, end, opened.global_batch, job.placement.mesh.size, jax.default_backend(), k),
        " in one program" if program.scans else "",
    )

    saves = {end, *(range(every, end, every) if every else ())}

    with ExitStack() as stack:
        feeder = stack.enter_context(job.feeding(program, opened, position, start, lengths))
        watch = stack.enter_context(_Watch(job, feeder, start, end))

        def save(step: int, state: TrainState) -> None:
            watch.publish()  # a run that goes on from here writes no earlier points
            input_state = source.state(source.advance(position, step - start))
            checkpoints.save(Saved(step, state, input_state, config.to_json()))

        state = run(state, feeder, program, watch.look, saves, save)
    if bad := getattr(source, "quarantine", ()):  # a pipeline dataset's
        log.warning("training: %d bad records were met on this host (%s)", len(bad), on_error_of(source))
    return TrainResult(start, end, state, watch.last, watch.speed(end - start), len(program.executables))


def _begin(job: Job, checkpoints: Checkpoints, opened: Opened, start: int) -> tuple[TrainState, Any]:
    config, source = job.config, opened.source
    if not opened.resumable:
        log.info("the input is a plain iterable: a resumed run starts it anew, it has no position to go on from")
    if start == 0:
        spec = job.placement.global_struct(opened.struct, opened.global_batch)
        return init_state(job.task, config.seed, spec, job.placement), source.start
    saved = checkpoints.restore(start, job.abstract_state(opened))
    changed = saved.changes(config.to_json())
    log.info("going on from the checkpoint of step %d%s", start, "; changed: " * bool(changed) + ", ".join(changed))
    return saved.state, source.restore(saved.input_state)


class _Watch:
    """What the host does with every look: checks for NaN, writes TensorBoard's points, moves the progress line."""

    def __init__(self, job: Job, feeder: Feeder, start: int, end: int) -> None:
        self.last: dict[str, float] = {}
        self._feeder, self._start, self._batch = feeder, start, job.config.global_batch_size
        self._events = self._line = None
        if jax.process_index() == 0:
            self._events = EventWriter(join(job.config.workdir, "train"), resumed_at=start + 1 if start else None)
            self._line = ProgressLine(start, end, self._batch, job.config.log_every)
        self._began = time.perf_counter()
        self._seconds = 0.0

    def look(self, look: Look) -> None:
        finite = look.scalars.pop(FINITE)
        self._write(look, int(finite.sum()) if finite.all() else int(np.argmin(finite)) + 1)
        if not finite.all():
            raise _nan_error(look, int(np.argmin(finite)))
        self._seconds = time.perf_counter() - self._began
        self.last = {name: float(values[-1]) for name, values in look.scalars.items()}

    def _write(self, look: Look, count: int) -> None:
        if self._events is None or self._line is None:
            return
        columns = {name: values.tolist() for name, values in look.scalars.items()}
        for i in range(count):
            self._events.scalars(look.start + i + 1, {name: column[i] for name, column in columns.items()})
        step = look.start + look.length
        speed = self._line.update(step, columns["loss"][-1], self._feeder.wait_seconds)
        if speed is not None:
            self._events.scalars(step, speed.scalars())
            self._events.flush()

    def speed(self, steps: int) -> Speed:
        """Over `steps` steps, from the first dispatch to the last look."""
        return Speed.of(steps, self._batch, self._seconds, self._feeder.wait_seconds)

    def publish(self) -> None:
        """Lets TensorBoard see all points so far."""
        if self._events is not None:
            self._events.flush(now=True)

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._events is None or self._line is None:
            return
        self._line.close()
        try:
            self._events.close()
        except StorageError as lost:
            if error is None:
                raise
            log.warning("%s", lost)  # what ended the run says more


def _nan_error(look: Look, i: int) -> NanError:
    step, loss = look.start + i + 1, float(look.scalars["loss"][i])
    what = (
        f"the loss is {loss}" if not np.isfinite(loss) else f"the loss is {loss:.4g}, but the parameters are not finite"
    )
    return NanError(
        f"{what} after step {step}. No checkpoint holds it; the run goes on from the newest one before. Lower the "
        "learning rate, clip the gradient, or look at the records of that step."
    )
