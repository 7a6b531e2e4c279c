"""The settings of an export, as flags. Stdlib only, so that --help appears immediately."""

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import OptionError

__all__ = ["Export"]


@dataclass(frozen=True, kw_only=True)
class Export:
    """What becomes a SavedModel, and where: a field of a recipe, whose fields become flags."""

    export_path: str | None = None
    """Where exports are published, each in a directory named by the time; may be gs://... Default: <workdir>/export.
    If given, a training run also exports its model when it ends."""
    export_best: bool = False
    """Export the best checkpoint, by --keep-best, rather than the newest."""
    export_model: Literal["params", "ema"] | None = None
    """Which parameters to export: those that were trained, or their average. Default: what is evaluated."""
    export_keep: int | None = None
    """How many exports to keep there. Default: all."""
    export_tolerance: float = 1e-5
    """The largest difference from the predictions of the trainer, as a share of the largest value. Nothing is published
    above it. On an accelerator, or with --precision bf16, 0.02 is reasonable."""

    def __post_init__(self) -> None:
        if self.export_keep is not None and self.export_keep < 1:
            raise OptionError(f"export_keep={self.export_keep} must be at least 1.")
        if not 0 <= self.export_tolerance < math.inf:
            raise OptionError(f"export_tolerance={self.export_tolerance} must be at least 0 and finite.")
