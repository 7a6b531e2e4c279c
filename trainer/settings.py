"""The settings of a training as the defaults of a recipe's flags."""

from dataclasses import fields, replace
from typing import Any

from pipeline.errors import OptionError, did_you_mean
from trainer.config import TrainerConfig

__all__ = ["settings"]


def settings(**values: Any) -> TrainerConfig:
    """A TrainerConfig with these values: the defaults of a recipe's flags.

    Without workdir, --workdir is a required flag. global_batch_size is 64 unless given. OptionError for an unknown name
    or a value that is not allowed."""
    import tyro

    known = [setting.name for setting in fields(TrainerConfig)]
    for name in values:
        if name not in known:
            raise OptionError(f"settings: {name!r} is not a setting of TrainerConfig.{did_you_mean(name, known)}")
    return replace(TrainerConfig(workdir=tyro.MISSING, global_batch_size=64), **values)
