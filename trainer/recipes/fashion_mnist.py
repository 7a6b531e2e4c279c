"""Fashion-MNIST: the recipe of MNIST on ten kinds of clothes, on the files as downloaded, in a directory fashion.

    infeed convert idx --raw_data_dir=fashion --output=shards/fashion --label_file=fashion/names.txt
    infeed train fashion_mnist --data-dir shards/fashion --workdir runs/fashion

Data: the four idx files of https://github.com/zalandoresearch/fashion-mnist: 60,000 training and 10,000 test images.
names.txt, which is optional, has the ten names of that page, one per line. Time: as mnist, per step. Expected: about
92 %. The benchmark of that page lists 87.6 to 91.6 % for two convolutions with max pooling, 91.9 to 93.2 % for others
of two convolutions. Run here on npm's copy, which has 7,000 images of each class without the original split; with the
first 6,000 of each for training: 92.67 % (seed 0)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes import mnist
from trainer.recipes.labelled_images import IMAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.decoding.op import Op

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(mnist.Config):
    """Trains a CNN on Fashion-MNIST, then evaluates one exact epoch of the test split."""

    shift_pixels: int = 1
    mirror: bool = True
    """Mirror half of the training images: clothes are as likely to face left as right."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, weight_decay=1e-2)
    trainer: TrainerConfig = settings(
        global_batch_size=128, eval_batch_size=500, iterations_per_loop=50, max_steps=4700, checkpoint_every_steps=1000
    )

    def augmentation(self) -> "Sequence[Op]":
        """Shifts and mirror images."""
        from pipeline.ops import RandomFlip

        return [*super().augmentation(), *([RandomFlip(IMAGE)] if self.mirror else [])]
