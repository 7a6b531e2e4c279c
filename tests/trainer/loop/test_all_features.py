"""Training with every feature on at once resumes with the same bits, and gives the same result on any devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from trainer.checkpointing.warm_start import WarmStart
from trainer.models.resnet import BatchNorm
from trainer.nnx_task import nnx_task
from trainer.optimizers.build import make_optimizer
from trainer.optimizers.config import OptimizerConfig, Run
from trainer.trainer import Trainer

pytestmark = pytest.mark.slow

STEPS, MIDDLE, BATCH = 24, 12, 16
OPTIMIZER = OptimizerConfig(
    optimizer="lamb",
    learning_rate=0.01,
    scaling="sqrt",
    warmup="4",
    weight_decay=0.05,
    no_decay=("*bias",),
    rate_of=("second/*=0.5",),
    freeze=("first/bias",),
    clip_norm=1.0,
)


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(8, 16, rngs=rngs), BatchNorm(16, span=4, rngs=rngs)
        self.dropout, self.second = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(nnx.relu(self.norm(self.first(x)))))


def loss(model, batch):
    logits = model(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), logits


def mixed(batch):
    """Mixes each row with its neighbour in the whole batch."""
    return batch | {"x": 0.9 * batch["x"] + 0.1 * jnp.roll(batch["x"], 1, axis=0)}


def accuracy(logits, batch):
    return logits.argmax(-1) == batch["label"]


@pytest.fixture(scope="module")
def first_values(vector_input, tmp_path_factory):
    """The work directory of a short training without any of it."""
    from trainer.config import TrainerConfig

    workdir = str(tmp_path_factory.mktemp("before"))
    task = nnx_task(Network, loss, optax.sgd(0.1))
    Trainer(task, TrainerConfig(workdir=workdir, global_batch_size=BATCH)).train(
        vector_input, max_steps=2
    )
    return workdir


@pytest.fixture
def make_trainer(first_values, config):
    def make(name, k, precision="bf16", devices=None):
        optimizer = make_optimizer(OPTIMIZER, Run(STEPS, BATCH))
        task = nnx_task(
            Network, loss, optimizer, {"accuracy": accuracy}, augment=mixed, precision=precision
        )
        settings = config(
            name,
            iterations_per_loop=k,
            loop_mode="scan",
            accumulate=2,
            ema_decay=0.9,
            keep_best="accuracy",
            keep_best_mode="max",
            precision=precision,
            on_nan="skip",
        )
        start = WarmStart(init_from=first_values, init_exclude=("second/*",))
        return Trainer(task, settings, devices, warm_start=start)

    return make


def arrays(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.state)]


@pytest.mark.parametrize("k", [1, 10])
def test_a_resumed_run_has_the_bits_and_the_metrics_of_the_straight_one(
    make_trainer, vector_input, k
):
    straight = make_trainer("straight", k).train_and_evaluate(
        vector_input, vector_input, eval_every_steps=MIDDLE, max_steps=STEPS
    )
    make_trainer("stopped", k).train(vector_input, max_steps=MIDDLE)
    resumed = make_trainer("stopped", k).train_and_evaluate(
        vector_input, vector_input, eval_every_steps=MIDDLE, max_steps=STEPS
    )
    assert [each.tobytes() for each in arrays(resumed)] == [
        each.tobytes() for each in arrays(straight)
    ]
    assert [each.metrics for each in resumed.evaluations] == [
        each.metrics for each in straight.evaluations
    ]
    assert {"loss", "accuracy"} <= {*straight.evaluations[0].metrics}


def test_one_device_and_four_agree(make_trainer, vector_input):
    four, one = (
        make_trainer(name, STEPS, "f32", devices).train(vector_input, max_steps=STEPS)
        for name, devices in (("four", None), ("one", jax.devices()[:1]))
    )
    for many, alone in zip(arrays(four), arrays(one), strict=True):
        if many.dtype == np.float32:
            np.testing.assert_allclose(many, alone, atol=1e-5, rtol=1e-5)
    assert (
        four.state.variables.params["first/bias"].tolist()
        == one.state.variables.params["first/bias"].tolist()
    )
