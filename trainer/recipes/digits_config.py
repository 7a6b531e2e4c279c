"""The flags of the digits recipe."""

from dataclasses import dataclass, replace

import tyro

from pipeline.errors import OptionError
from trainer.config import TrainerConfig
from trainer.recipes.config import SMALL_BATCHES, RecipeConfig

__all__ = ["ENCODED", "LABEL", "Config"]

ENCODED, LABEL = "image/encoded", "image/class/label"
DEFAULTS = replace(SMALL_BATCHES, max_steps=600, checkpoint_every_steps=200)


@dataclass(frozen=True, kw_only=True)
class Config(RecipeConfig):
    """Trains a small CNN on handwritten digits, then evaluates one exact epoch of the validation split."""

    learning_rate: float = 3e-3
    """Peak of a cosine schedule with a short warm-up."""
    shift_pixels: int = 3
    """Shift training images by up to this many pixels in each direction."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig] = DEFAULTS

    def check_features(self) -> None:
        features = getattr(self.eval_records.layout, "features", {})
        for key in (ENCODED, LABEL):
            if key not in features:
                raise OptionError(
                    f"{self.data_dir} has no feature {key!r}, which this recipe reads. Its features are: "
                    f"{', '.join(sorted(features)) or 'unknown'}. For other labelled images, use the images recipe: "
                    "python -m trainer images."
                )
