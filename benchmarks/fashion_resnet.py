"""A recipe: ResNet-18 on Fashion-MNIST, to an accuracy that its small CNN does not reach. See bench_defaults."""

from dataclasses import dataclass
from typing import Any

from trainer.models.resnet import ResNet, ResNetShape
from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes.small_images import FashionMnist


@dataclass(frozen=True, kw_only=True)
class Config(FashionMnist):
    """Trains a ResNet-18 with a stem for small images, then evaluates one exact epoch of the test split."""

    shift_pixels: int = 2
    optimizer: OptimizerConfig = OptimizerConfig(
        optimizer="sgd", learning_rate=0.1, warmup="20%", schedule="linear", weight_decay=1e-3
    )
    trainer: TrainerConfig = settings(
        global_batch_size=512,
        eval_batch_size=1000,
        precision="bf16",
        max_steps=6000,  # 51 epochs
        checkpoint_every_steps=10_000,
    )

    def model(self, rngs: Any) -> ResNet:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ResNet(ResNetShape((2, 2, 2, 2), stem="small"), self.num_classes, rngs, channels=1)
