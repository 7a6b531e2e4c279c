"""The flags of line_worker's recipe."""

from dataclasses import dataclass, field

import tyro

from trainer.config import TrainerConfig


@dataclass(frozen=True, kw_only=True)
class Config:
    """Fits a line."""

    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig] = field(
        default_factory=lambda: TrainerConfig(
            workdir=tyro.MISSING,
            global_batch_size=16,
            max_steps=40,
            iterations_per_loop=5,
            checkpoint_every_steps=20,
            keep_max=2,
        )
    )

    def check(self) -> None:
        """Nothing can be wrong before JAX is imported."""
