"""CIFAR-10: ResNet-20 as published, on the archive as downloaded: cifar-10-binary.tar.gz in a directory cifar.

    infeed convert cifar --raw_data_dir=cifar --output=shards/cifar10
    infeed train cifar10 --data-dir shards/cifar10 --workdir runs/cifar10

Data: https://www.cs.toronto.edu/~kriz/cifar.html, the binary version: 50,000 training and 10,000 test images. Expected:
91.25 % (8.75 % error) after 64,000 steps of 128 images, published in table 6 of https://arxiv.org/abs/1512.03385 on two
GPUs. Not reproduced here, without an accelerator: two CPU cores train 1.2 steps per second, and reach 63.41 % after
1,000 steps. As in section 4.2 there: pad by 4 pixels, crop, mirror; SGD with momentum 0.9, weight decay 1e-4 and a
learning rate of 0.1, a tenth of it from half of the training on and a hundredth from three quarters on. Unlike there,
biases and batch norms do not decay, and one mean per channel, of ImageNet, is subtracted rather than one per pixel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes.bn_span import fitting_span
from trainer.recipes.labelled_images import IMAGE, LabelledImages

if TYPE_CHECKING:
    from pipeline.decoding.op import Op
    from trainer.models.resnet import ResNet

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(LabelledImages):
    """Trains a residual network on CIFAR-10, then evaluates one exact epoch of the test split."""

    image_shape = (32, 32, 3)

    bn_span: int = 64
    """Rows over which batch norms take their statistics in training: those of one of the two GPUs in the paper."""
    eval_split: str = "test"
    """What to evaluate and predict: test, train[90%:]."""
    optimizer: OptimizerConfig = OptimizerConfig(
        optimizer="sgd",
        learning_rate=0.1,
        nesterov=False,
        schedule="step",
        decay_at=("50%", "75%"),
        warmup="0",
        weight_decay=1e-4,
    )
    trainer: TrainerConfig = settings(
        global_batch_size=128, eval_batch_size=500, max_steps=64_000, checkpoint_every_steps=5000
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "train":
            object.__setattr__(self, "bn_span", fitting_span(self.bn_span, self.trainer, self.tiny))

    def model(self, rngs: Any) -> "ResNet":
        """ResNet-20."""
        from trainer.models.resnet import RESNETS, ResNet

        return ResNet(RESNETS["resnet20"], self.num_classes, rngs, bn_span=self.bn_span, zero_last_scale=False)

    def augmentation(self) -> "Sequence[Op]":
        """Random crops of the padded image, half of them mirrored."""
        from pipeline.ops import RandomCrop, RandomFlip

        return [RandomCrop(IMAGE, padding=4), RandomFlip(IMAGE)]
