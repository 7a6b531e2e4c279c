"""The flags that every recipe has: the settings of a training with other defaults, those of an export and of pages.

Stdlib only, so that --help appears immediately."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pipeline.errors import OptionError, check_number, did_you_mean
from trainer.config import TrainerConfig

MOST_PICTURES = 250  # of 64x64 pixels, so that a page stays below 5 MB
WRITTEN_BY = ("train", "evaluate", "look")


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
    above it. On an accelerator, or with --precision bf16, 0.02 is reasonable; for signatures that decode images, it is
    the least."""

    def __post_init__(self) -> None:
        check_number("export_keep", self.export_keep, at_least=1)
        check_number("export_tolerance", self.export_tolerance, at_least=0, below=math.inf)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What the pages show, and where they are written: a field of a recipe, whose fields become flags."""

    report: str | None = None
    """Write a page about the evaluation to this file, such as report.html; may be gs://... It shows metrics and their
    proof, mistakes by class, and the worst records. With --mode train, the page is about the evaluation at the end.
    With --mode look, this is where its page is written (default: <workdir>/look.html)."""
    look_records: int = 16
    """Records that --mode look shows, spread evenly over the training data."""
    look_draws: int = 4
    """Epochs in which --mode look shows each of them."""

    def __post_init__(self) -> None:
        for name in ("look_records", "look_draws"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)} must be at least 1.")
        if (pictures := self.look_records * (self.look_draws + 1)) > MOST_PICTURES:
            raise OptionError(
                f"look_records={self.look_records} with look_draws={self.look_draws}: {pictures} pictures, as each "
                f"record is also shown as stored. A page has at most {MOST_PICTURES}. Reduce one of them."
            )

    def check(self, mode: str) -> None:
        """Raises OptionError for a mode that writes no page, and for what would prevent writing it, hours later."""
        if self.report is None and mode != "look":
            return
        if mode not in WRITTEN_BY:
            raise OptionError(
                f"report={self.report!r} with mode={mode}: only {', '.join(WRITTEN_BY)} write a page. Leave it out."
            )
        from pipeline.pages.page import check_page

        check_page(self.report)
