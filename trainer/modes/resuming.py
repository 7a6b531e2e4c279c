"""Where a resumed training's input continues, or why it cannot, in terms of the user's settings."""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import FingerprintError
from trainer.checkpointing.manager import Saved
from trainer.inputs import Input

__all__ = ["resumed_position"]

ORDER_SETTINGS = ("global_batch_size", "seed")  # they determine the order of a recipe's records


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
