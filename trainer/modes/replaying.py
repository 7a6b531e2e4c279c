"""Training steps once more, from a checkpoint that was kept, with the loss of every record. Writes nothing."""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.logs import logger
from trainer.inputs import INDEX, MASK, InputFn
from trainer.loop.dispatch_plan import Marks, Steps
from trainer.loop.dispatching import run
from trainer.modes.resuming import resumed_position
from trainer.modes.session import Session, open_session
from trainer.results import ReplayedStep
from trainer.setup import Opened, Setup
from trainer.state import TrainState
from trainer.step_functions import BAD_LEAF, record_losses, train_step
from trainer.warm_start.config import WarmStart
from trainer.warm_start.loading import plan_loading

__all__ = ["replay"]

log = logger("trainer")


def replay(
    setup: Setup, input_fn: InputFn, steps: range, start: int = 0, warm_start: WarmStart | None = None
) -> Iterator[ReplayedStep]:
    """Replays these steps. start: of the run that trained them; see Trainer.replay for the errors."""
    if jax.process_count() > 1:
        raise OptionError("a replay runs in one process, on the devices that it has. Start it without a coordinator.")
    with open_session(setup.config) as session:
        begin = _begin(session.checkpoints.steps(), steps, start, setup.config.checkpoint_every_steps)
        log.info("replaying from %s", f"the checkpoint of step {begin}" if begin else "the new model")
        opened = setup.open("train", input_fn, begin)
        if not opened.resumable:
            raise OptionError("a plain iterable has no positions, so its batches cannot be read again.")
        state, position = _state(session, setup, opened, begin, warm_start or WarmStart())
        state = _advanced(session, setup, opened, state, position, range(begin, steps.start - 1))
        position = opened.source.advance(position, steps.start - 1 - begin)
        for step, loss, losses, record_ids in _observed(session, setup, opened, state, position, steps):
            yield ReplayedStep(step, loss, losses, record_ids, begin)


def _begin(kept: list[int], steps: range, start: int, every: int | None) -> int:
    """The step of the state to begin with."""
    usable = [step for step in kept if start <= step < steps.start]
    if usable:
        return usable[-1]
    if start == 0 and (every is None or steps.start <= every):  # before the first checkpoint
        return 0
    raise CheckpointError(
        f"step {steps.start} cannot be replayed: no checkpoint is left between the start of its run, after step "
        f"{start}, and step {steps.start - 1}. Kept are: {kept or 'none'}. keep_every_steps keeps more of them."
    )


def _state(
    session: Session, setup: Setup, opened: Opened, step: int, warm_start: WarmStart
) -> tuple[TrainState, object]:
    if step:
        saved = session.checkpoints.restore(step, setup.abstract_state(opened))
        return saved.state, resumed_position(opened.source, saved, setup.config.to_json())
    loading = plan_loading(warm_start, setup.abstract_state(opened)) if warm_start.init_from else None
    state = setup.fresh_state(opened, session.check)
    return loading.into(state, setup.task, setup.placement) if loading else state, opened.source.start


def _step_function(setup: Setup) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    config = setup.config
    unroll = setup.placement.on_cpu
    return train_step(
        setup.task, config.on_nan, accumulate=config.accumulate, unroll=unroll, ema_decay=config.ema_decay
    )


def _advanced(
    session: Session, setup: Setup, opened: Opened, state: TrainState, position: object, steps: range
) -> TrainState:
    """The state after these steps, computed by the program of training."""
    if not steps:
        return state
    every = [n for n in (setup.config.checkpoint_every_steps,) if n]
    k = setup.steps_per_dispatch(opened, every)
    program = setup.program(_step_function(setup), state, opened, k)
    planned = Steps.planned(steps.start, steps.stop, k, Marks(every))
    with setup.feeding(program, opened, position, planned, session.check) as feeder:
        state, _ = run(state, steps.start, feeder, program, lambda _: None, session)
    return state


def _observed(
    session: Session, setup: Setup, opened: Opened, state: TrainState, position: object, steps: range
) -> Iterator[tuple[int, float, np.ndarray, np.ndarray | None]]:
    """Step, loss, losses and record numbers of these steps."""
    program = setup.program(_step_function(setup), state, opened, 1)
    losses_of = jax.jit(
        partial(record_losses, setup.task, accumulate=setup.config.accumulate),
        out_shardings=setup.placement.replicated,
        compiler_options=setup.placement.runs_once,
    )
    planned = Steps.planned(steps.start - 1, steps.stop - 1, 1)
    with setup.feeding(program, opened, position, planned, session.check) as feeder:
        for chunk in feeder:
            (batch,) = chunk.batches
            losses = jax.device_get(losses_of(state, batch))  # before the step, which donates the state
            counted = np.asarray(jax.device_get(batch[MASK])) > 0
            record_ids = np.asarray(jax.device_get(batch[INDEX])) if INDEX in batch else None
            state, (scalars,) = program(state, chunk.batches, chunk.stacked)
            scalars.pop(BAD_LEAF, None)
            yield chunk.start + 1, float(scalars["loss"]), np.where(counted, losses, np.nan), record_ids
