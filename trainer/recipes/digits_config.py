"""The flags of the digits recipe."""

from dataclasses import dataclass, field

import tyro

from pipeline.shards.errors import OptionError
from trainer.config import TrainerConfig
from trainer.recipes.config import RecipeConfig

__all__ = ["ENCODED", "LABEL", "Config"]

ENCODED, LABEL = "image/encoded", "image/class/label"


@dataclass(frozen=True, kw_only=True)
class Config(RecipeConfig):
    """Trains a small CNN on handwritten digits, then evaluates one exact epoch of the validation split."""

    learning_rate: float = 3e-3
    """Peak of a cosine schedule with a short warm-up."""
    shift_pixels: int = 3
    """Training images are shifted by up to so many pixels each way."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig] = field(
        default_factory=lambda: TrainerConfig(
            workdir=tyro.MISSING,
            global_batch_size=64,
            eval_batch_size=128,
            max_steps=600,
            iterations_per_loop=20,
            checkpoint_every_steps=200,
        )
    )

    def check_features(self) -> None:
        """See RecipeConfig."""
        features = getattr(self.eval_records.layout, "features", {})
        for key in (ENCODED, LABEL):
            if key not in features:
                raise OptionError(
                    f"{self.data_dir} has no feature {key!r}, which this recipe reads. Its features are: "
                    f"{', '.join(sorted(features)) or 'unknown'}. The images recipe trains on any labelled images: "
                    "python -m trainer images."
                )
