"""What a training run begins with: a new state, or that of a checkpoint, and the position of its input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import FingerprintError
from pipeline.logs import logger
from trainer.checkpointing.kept_data import has_new_head
from trainer.checkpointing.manager import Saved
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_loading import plan_loading
from trainer.inputs import Input
from trainer.loop.job import OpenedInput
from trainer.loop.session import Session
from trainer.task import TrainState

ORDER_SETTINGS = ("global_batch_size", "seed")  # they determine the order of a recipe's records

log = logger("trainer")


@dataclass(frozen=True)
class Begun:
    """The state and the input's position after `step`, before the first step to train. run: that saved them, if known.

    productive_seconds: see Goodput."""

    step: int
    state: TrainState
    position: Any
    productive_seconds: float = 0.0
    run: str | None = None


def begin(session: Session, opened: OpenedInput, step: int, warm_start: WarmStart) -> Begun:
    """What a run begins with: a new model if `step` is 0, else the checkpoint of that step."""
    job = session.job
    if not opened.resumable:
        (log.warning if step else log.info)(
            "the input is a plain iterable, which has no position: a resumed run starts it from its beginning, unless "
            "input_fn starts it at InputContext.start_step",
        )
    if step == 0:
        new_head = has_new_head(warm_start, opened.description, job.target)
        plan = plan_loading(warm_start, job.abstract_state(opened), new_head) if warm_start.init_from else None
        state = job.fresh_state(opened)
        return Begun(0, plan.into(state, job.task, job.placement) if plan else state, opened.source.info.start)
    if warm_start.init_from:
        log.info("init_from=%s is ignored: the work directory has a checkpoint", warm_start.init_from)
    saved, config = session.checkpoints.restore(step, job.abstract_state(opened)), job.config.to_json()
    position = resumed_position(opened.source, saved, config)
    changes = ", ".join(saved.changes(config))
    log.info("resuming from the checkpoint of step %d%s", step, changes and f"; changed: {changes}")
    return Begun(step, saved.state, position, saved.productive_seconds, saved.run)


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
