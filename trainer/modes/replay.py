"""Training steps once more, from a checkpoint that was kept, with the loss of every record. Writes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.logs import logger
from trainer.activity import CONSUMER
from trainer.checkpointing.manager import CheckpointManager
from trainer.history.segments import Start, read_history, segment_of_all
from trainer.inputs import INDEX, MASK, InputFn
from trainer.job import Job, OpenedInput
from trainer.loop.dispatching import Marks, Steps, run
from trainer.modes.session import Begun, Session, begin, open_session
from trainer.modes.train import training_step
from trainer.results import ReplayedStep
from trainer.step_functions import record_losses
from trainer.warm_start.config import WarmStart

log = logger("trainer")


def replay(job: Job, input_fn: InputFn, steps: range, warm_start: WarmStart) -> Iterator[ReplayedStep]:
    """Replays these steps; see Trainer.replay for the errors."""
    if jax.process_count() > 1:
        raise OptionError("a replay runs in one process, on the devices that it has. Start it without a coordinator.")
    workdir = job.config.workdir
    start = segment_of_all(read_history(workdir), steps, workdir).start
    with open_session(job) as session:
        step = _first_step(session.checkpoints, steps, start, job.config.checkpoint_every_steps)
        log.info("replaying from %s", f"the checkpoint of step {step}" if step else "the new model")
        opened = session.open("train", input_fn, step)
        if not opened.resumable:
            raise OptionError("a plain iterable has no positions, so its batches cannot be read again.")
        if opened.is_program:
            raise OptionError("a tf.data program need not deliver its batches again; only infeed's datasets do.")
        begun = _advanced(session, opened, begin(session, opened, step, warm_start), steps.start - 1)
        for replayed in _observed(session, opened, begun, steps):
            with session.activity.doing("with the consumer of the replayed steps", CONSUMER):
                yield replace(replayed, from_step=step)


def _first_step(checkpoints: CheckpointManager, steps: range, start: Start, every: int | None) -> int:
    """The step of the state to begin with. start: of the run of these steps."""
    kept = checkpoints.steps()
    for step in reversed(kept):  # another run may have saved a later one than this run began with
        own = start.run if step > start.step else start.parent
        if start.step <= step < steps.start and checkpoints.saved_by(step) in (own, None):
            return step
    if start.step == 0 and (every is None or steps.start <= every):  # before the first checkpoint
        return 0
    raise CheckpointError(
        f"step {steps.start} cannot be replayed: no checkpoint of its run is left between its start, after step "
        f"{start.step}, and step {steps.start - 1}. Kept are: {kept or 'none'}. keep_every_steps keeps more of them."
    )


def _advanced(session: Session, opened: OpenedInput, begun: Begun, to: int) -> Begun:
    """After the step `to`, computed by the program of training."""
    if begun.step == to:
        return begun
    job = session.job
    every = [n for n in (job.config.checkpoint_every_steps,) if n]
    k = job.steps_per_dispatch(opened, every)
    program = job.program(training_step(job), begun.state, opened, k)
    planned = Steps.planned(begun.step, to, k, Marks(every))
    with session.feeding(program, opened, begun.position, planned) as feeder:
        state, _ = run(begun.state, begun.step, feeder, program, on_result=lambda _: None, between=session)
    return Begun(to, state, opened.source.advance(begun.position, to - begun.step))


def _observed(session: Session, opened: OpenedInput, begun: Begun, steps: range) -> Iterator[ReplayedStep]:
    job, state = session.job, begun.state
    program = job.program(training_step(job), state, opened, 1)
    losses_of = jax.jit(
        partial(record_losses, job.traced_task, accumulate=job.config.accumulate, axes=job.placement.axes),
        out_shardings=job.placement.replicated,
        compiler_options=job.placement.runs_once,
    )
    planned = Steps.planned(steps.start - 1, steps.stop - 1, 1)
    with session.feeding(program, opened, begun.position, planned) as feeder:
        for chunk in feeder:
            (batch,) = chunk.batches
            losses = jax.device_get(losses_of(state, batch))  # before the step, which donates the state
            counted = np.asarray(jax.device_get(batch[MASK])) > 0
            record_ids = np.asarray(jax.device_get(batch[INDEX])) if INDEX in batch else None
            state, returned = program(state, chunk.batches, chunk.stacked)
            (loss,) = program.read(returned, chunk.stacked)["loss"].tolist()
            yield ReplayedStep(chunk.start + 1, loss, np.where(counted, losses, np.nan), record_ids, begun.step)
