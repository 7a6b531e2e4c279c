"""The flags that every recipe has: the settings of a run with other defaults, and those of an export.

Imports neither JAX nor NumPy, so that --help appears immediately."""

import math
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import check_number
from trainer.config import TrainerConfig


def settings(**values: Any) -> TrainerConfig:
    """A TrainerConfig with these values: the defaults of a recipe's flags.

    Without workdir, --workdir is a required flag. global_batch_size is 64 unless given. OptionError for an unknown name
    or a value that is not allowed."""
    import tyro

    return replace(TrainerConfig(workdir=tyro.MISSING, global_batch_size=64), **values)


@dataclass(frozen=True, kw_only=True)
class Export:
    """What becomes a SavedModel, and where: a field of a recipe, whose fields become flags."""

    export_path: str | None = None
    """Where exports are published, each in a directory named by the time; may be gs://... Default: <workdir>/export.
    If given, a training run also exports its model when it ends. --checkpoint-path exports another checkpoint."""
    export_tolerance: float = 1e-5
    """The largest difference from the predictions of the trainer, as a share of the largest value. Nothing is published
    above it. On an accelerator, or with --precision bf16, 0.02 is reasonable; for signatures that decode images, it is
    the least."""

    def __post_init__(self) -> None:
        check_number("export_tolerance", self.export_tolerance, at_least=0, below=math.inf)
