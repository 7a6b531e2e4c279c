"""MNIST: the CNN of most tutorials, on the four idx files as downloaded, or their .gz, in a directory mnist.

    infeed convert idx --raw_data_dir=mnist --output=shards/mnist
    infeed train mnist --data-dir shards/mnist --workdir runs/mnist

Data: http://yann.lecun.com/exdb/mnist/: 60,000 training and 10,000 test images. Two CPU cores: 5 to 6 CPU minutes for
2,300 steps, about five epochs. Expected: 99.2 to 99.3 % accuracy, as TensorFlow's tutorial "Deep MNIST for Experts" has
(99.2 %) with an eightfold network. Reproduced here: 99.24, 99.33 and
99.33 % with seeds 0, 1 and 2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import OptionError
from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes.labelled_images import IMAGE, LabelledImages

if TYPE_CHECKING:
    from pipeline.decoding.op import Op
    from trainer.models.pooling_cnn import PoolingCnn

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(LabelledImages):
    """Trains a CNN on MNIST, then evaluates one exact epoch of the test split."""

    image_shape = (28, 28, 1)

    shift_pixels: int = 2
    """Shift training images by up to this many pixels in each direction."""
    widths: tuple[int, ...] = (32, 64)
    """Channels of the convolutions; the pooling after each one halves the image."""
    hidden: int = 128
    """Width of the dense layer."""
    eval_split: str = "test"
    """What to evaluate and predict: test, train[90%:]."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, weight_decay=1e-2)
    trainer: TrainerConfig = settings(
        global_batch_size=128, eval_batch_size=500, iterations_per_loop=50, max_steps=2300, checkpoint_every_steps=500
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.widths) <= 4 or min(*self.widths, self.hidden) < 1:
            raise OptionError(
                f"widths={self.widths} with hidden={self.hidden}: give 1 to 4 widths, each above 0, and a dense layer "
                "above 0. Each width halves the image of 28 pixels."
            )

    def model(self, rngs: Any) -> "PoolingCnn":
        """See PoolingCnn."""
        from trainer.models.pooling_cnn import PoolingCnn

        return PoolingCnn(self.num_classes, self.image_shape, rngs, self.widths, self.hidden)

    def augmentation(self) -> "Sequence[Op]":
        """Shifts."""
        from pipeline.ops import RandomShift

        return [RandomShift(IMAGE, pixels=self.shift_pixels)]
