"""The state that training begins with, its step, and where the input continues: of a training, and of a replay, which
must have the same bits."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from pipeline.errors import FingerprintError
from trainer.checkpointing.arrays import Saved
from trainer.inputs import Input
from trainer.modes.session import Session
from trainer.setup import Opened, Setup
from trainer.state import TrainState
from trainer.step_functions import train_step
from trainer.warm_start.config import WarmStart
from trainer.warm_start.loading import plan_loading

__all__ = ["new_state", "restored", "resumed_position", "training_step"]

ORDER_SETTINGS = ("global_batch_size", "seed")  # they determine the order of a recipe's records


def new_state(session: Session, setup: Setup, opened: Opened, warm_start: WarmStart) -> TrainState:
    """The state before step 1."""
    loading = plan_loading(warm_start, setup.abstract_state(opened)) if warm_start.init_from else None
    state = setup.fresh_state(opened, session.check)
    return loading.into(state, setup.task, setup.placement) if loading else state


def restored(session: Session, setup: Setup, opened: Opened, step: int) -> tuple[Saved, Any]:
    """The checkpoint of a step, and the input's position there."""
    saved = session.checkpoints.restore(step, setup.abstract_state(opened))
    return saved, resumed_position(opened.source, saved, setup.config.to_json())


def resumed_position(source: Input, saved: Saved, config: Mapping[str, Any]) -> Any:
    """The input's position at the saved step. config: the settings of this run, as JSON.

    Raises FingerprintError, with the settings to resume with, if the data or their order have changed."""
    try:
        return source.restore(saved.input_state)
    except FingerprintError as error:
        changed = [name for name in ORDER_SETTINGS if saved.config.get(name) != config[name]]
        if saved.input_state.get("fingerprint") != source.fingerprint or not changed:
            raise FingerprintError(
                f"the checkpoint of step {saved.step} does not fit this input: {error} On the command line, resume "
                "with the --data-dir and --train-split that it was trained on; another --workdir starts over."
            ) from error
        then, now = ([f"{name}={values.get(name)}" for name in changed] for values in (saved.config, config))
        flags = " ".join(f"--{name.replace('_', '-')} {saved.config.get(name)}" for name in changed)
        raise FingerprintError(
            f"the checkpoint of step {saved.step} was trained with {', '.join(then)}, this run has {', '.join(now)}, "
            f"which changes the order of records. Resume with {flags} ({', '.join(then)} in the TrainerConfig), or "
            "start over in another --workdir (workdir)."
        ) from error


def training_step(setup: Setup) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """The step function, as configured."""
    config = setup.config
    unroll, axes = setup.placement.on_cpu, setup.placement.axes
    return train_step(
        setup.task, config.on_nan, accumulate=config.accumulate, unroll=unroll, ema_decay=config.ema_decay, axes=axes
    )
