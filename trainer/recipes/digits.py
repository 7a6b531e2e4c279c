"""Handwritten digits: a small CNN on the shards of the digits demo. A complete recipe: flags, inputs, model, loss.

JAX and TensorFlow are imported where they are used, so that --help and the checks need neither."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import OptionError
from trainer.recipe import DataRecipe, OptimizerConfig, TrainerConfig, batch_options, settings

if TYPE_CHECKING:
    import jax

    from trainer.inputs import InputContext
    from trainer.models.cnn import SmallCnn
    from trainer.task import Batch, Task

__all__ = ["Config"]

ENCODED, LABEL = "image/encoded", "image/class/label"
IMAGE = "image"
IMAGE_SHAPE = (32, 32, 1)
NUM_CLASSES, LABEL_BASE = 10, 1  # the tpu schema keeps 0 for the background


@dataclass(frozen=True, kw_only=True)
class Config(DataRecipe):
    """Trains a small CNN on handwritten digits, then evaluates one exact epoch of the validation split."""

    shift_pixels: int = 3
    """Shift training images by up to this many pixels in each direction."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-3, weight_decay=1e-4)
    trainer: TrainerConfig = settings(
        eval_batch_size=128, iterations_per_loop=20, max_steps=600, checkpoint_every_steps=200
    )

    def check(self) -> None:
        """As DataRecipe.check. Raises OptionError if the records lack the features that this recipe reads."""
        super().check()
        features = getattr(self.eval_records.layout, "features", {})
        for key in (ENCODED, LABEL):
            if key not in features:
                raise OptionError(
                    f"{self.data_dir} has no feature {key!r}, which this recipe reads. Its features are: "
                    f"{', '.join(sorted(features)) or 'unknown'}. For other labelled images, use the images recipe: "
                    "python -m trainer images."
                )

    def train_input(self, ctx: "InputContext") -> Any:
        """Shifted images: image uint8 [b, 32, 32, 1], label int32 [b] in 1..10."""
        from pipeline.datasets import train_dataset
        from pipeline.ops import DecodeJpeg, RandomShift

        ops = [DecodeJpeg(ENCODED, into=IMAGE, shape=IMAGE_SHAPE), RandomShift(IMAGE, pixels=self.shift_pixels)]
        return train_dataset(self.train_records, ops=ops, keys=(IMAGE, LABEL), seed=ctx.seed, **batch_options(ctx))

    def eval_input(self, ctx: "InputContext") -> Any:
        """As train_input, in order and without shifts."""
        from pipeline.datasets import eval_dataset
        from pipeline.ops import DecodeJpeg

        ops = [DecodeJpeg(ENCODED, into=IMAGE, shape=IMAGE_SHAPE)]
        return eval_dataset(self.eval_records, ops=ops, keys=(IMAGE, LABEL), **batch_options(ctx))

    def task(self) -> "Task":
        """Cross entropy and accuracy of a SmallCnn.

        Predicts class and label (both in 1..10) and the probability of the class."""
        import jax
        import jax.numpy as jnp
        import optax

        from trainer.metrics.classes import Accuracy
        from trainer.models.cnn import SmallCnn
        from trainer.nnx_task import nnx_task
        from trainer.optimizers.build import make_optimizer

        def labels(outputs: Any, batch: "Batch") -> "jax.Array":
            del outputs
            return batch[LABEL] - LABEL_BASE

        def loss(model: Any, batch: "Batch") -> tuple["jax.Array", "jax.Array"]:
            logits = model(batch[IMAGE])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels(logits, batch)), logits

        def predict(model: Any, batch: "Batch") -> dict[str, "jax.Array"]:
            probabilities = jax.nn.softmax(model(batch[IMAGE]))
            best = jnp.argmax(probabilities, axis=-1) + LABEL_BASE
            return {"class": best, "label": batch[LABEL], "probability": probabilities.max(axis=-1)}

        def make_model(rngs: Any) -> "SmallCnn":
            return SmallCnn(NUM_CLASSES, IMAGE_SHAPE, rngs)

        optimizer = make_optimizer(self.optimizer, self.run)
        metrics = {"accuracy": Accuracy(labels)}
        return nnx_task(make_model, loss, optimizer, metrics, predict, precision=self.trainer.precision)
