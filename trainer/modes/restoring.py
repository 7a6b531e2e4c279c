"""The state that a call begins with: of a training or a replay, which must have the same bits, or of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.errors import FingerprintError
from pipeline.logs import logger
from trainer.checkpointing.manager import CheckpointManager, Saved, WhichStep
from trainer.inputs import Input, InputFn
from trainer.job import Mode, OpenedInput
from trainer.modes.preflight import agree_on
from trainer.modes.session import Session
from trainer.state import TrainState
from trainer.warm_start.config import WarmStart
from trainer.warm_start.loading import plan_loading

log = logger("trainer")

ORDER_SETTINGS = ("global_batch_size", "seed")  # they determine the order of a recipe's records


@dataclass(frozen=True)
class Begun:
    """The state and the input's position after `step`, before the first step to train. run: that saved them, if known.

    changes: what differs from when they were saved. productive_seconds: see Goodput."""

    step: int
    state: TrainState
    position: Any
    productive_seconds: float | None = 0.0
    run: str | None = None
    changes: tuple[str, ...] = ()


def begin(session: Session, opened: OpenedInput, step: int, warm_start: WarmStart) -> Begun:
    """Of a new model if `step` is 0, else of the checkpoint of that step."""
    job = session.job
    if step == 0:
        plan = plan_loading(warm_start, job.abstract_state(opened)) if warm_start.init_from else None
        state = job.fresh_state(opened, session.check)
        return Begun(0, plan.into(state, job.task, job.placement) if plan else state, opened.source.info.start)
    saved, config = session.checkpoints.restore(step, job.abstract_state(opened)), job.config.to_json()
    position = resumed_position(opened.source, saved, config)
    changes = tuple(saved.changes(config))
    return Begun(step, saved.state, position, saved.productive_seconds, saved.run, changes=changes)


def resumed_position(source: Input, saved: Saved, config: Mapping[str, Any]) -> Any:
    """The input's position at the saved step. config: the settings of this run, as JSON.

    Raises FingerprintError, with the settings to resume with, if the data or their order have changed."""
    try:
        return source.restore(saved.input_state)
    except FingerprintError as error:
        changed = [name for name in ORDER_SETTINGS if saved.config.get(name) != config[name]]
        if saved.input_state.get("fingerprint") != source.info.fingerprint or not changed:
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


class Restored(NamedTuple):
    """What a call that trains nothing begins with: an input, a state, and the checkpoints that have it."""

    opened: OpenedInput
    state: TrainState
    step: int
    checkpoints: CheckpointManager


def restore(
    session: Session,
    mode: Mode,
    input_fn: InputFn,
    step: WhichStep | None,
    checkpoint_path: str | None,
    **arguments: Any,
) -> Restored:
    """The input, and the state of a checkpoint, once all hosts agree on both. arguments: others of the call.

    step, checkpoint_path: see Trainer.evaluate. In a fast_dev_run the state is an untrained one."""
    job = session.job
    with session.preemption.leavable():
        checkpoints, step = session.checkpoints_of(step, checkpoint_path)
        opened = session.open(mode, input_fn)
    agree_on(session, [opened], step, step, checkpoint_path=checkpoint_path, **arguments)
    with session.preemption.leavable():
        if job.config.fast_dev_run:
            return Restored(opened, job.fresh_state(opened, session.check), step, checkpoints)
        state = checkpoints.restore(step, job.abstract_state(opened)).state
        return Restored(opened, state, step, checkpoints)
