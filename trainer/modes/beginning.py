"""The state that training begins with, and its step: of a training, and of a replay, which must have the same bits."""

from collections.abc import Callable
from typing import Any

import jax

from trainer.checkpointing.saved import Saved
from trainer.modes.resuming import resumed_position
from trainer.modes.session import Session
from trainer.setup import Opened, Setup
from trainer.state import TrainState
from trainer.step_functions import train_step
from trainer.warm_start.config import WarmStart
from trainer.warm_start.loading import plan_loading

__all__ = ["new_state", "restored", "training_step"]


def new_state(session: Session, setup: Setup, opened: Opened, warm_start: WarmStart) -> TrainState:
    """The state before step 1."""
    loading = plan_loading(warm_start, setup.abstract_state(opened)) if warm_start.init_from else None
    state = setup.fresh_state(opened, session.check)
    return loading.into(state, setup.task, setup.placement) if loading else state


def restored(session: Session, setup: Setup, opened: Opened, step: int) -> tuple[Saved, Any]:
    """The checkpoint of a step, and the input's position there."""
    saved = session.checkpoints.restore(step, setup.abstract_state(opened))
    return saved, resumed_position(opened.source, saved, setup.config.to_json())


def training_step(setup: Setup) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """The step function, as configured."""
    config = setup.config
    unroll = setup.placement.on_cpu
    return train_step(
        setup.task, config.on_nan, accumulate=config.accumulate, unroll=unroll, ema_decay=config.ema_decay
    )
