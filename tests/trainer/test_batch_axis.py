"""Arrays whose batch is not the first axis: they train, evaluate and predict to the same numbers as with rows first."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from pipeline.errors import InputError, OptionError
from trainer.batch_axes import BatchAxes
from trainer.config import TrainerConfig
from trainer.exporter import Exporter
from trainer.mesh import Placement
from trainer.modes.beginning import training_step
from trainer.setup import Setup
from trainer.task import Task, Variables
from trainer.trainer import Trainer

LAYOUTS = {"NHWC": {}, "HWCN": {"photo/pixels": 3}}
RECORDS = 40
LOOPS = {"scan": {"loop_mode": "scan"}, "step": {"loop_mode": "step"}, "accumulate": {"accumulate": 2}}


def conv_task(layout):
    """One convolution over images in this layout, whose mean over pixels and channels is the logits [b, 3]."""

    def init(rng, spec):
        return Variables({"w": 0.3 * jax.random.normal(rng, (3, 3, spec["photo"]["pixels"].shape[-1 - (layout == "HWCN")], 3))})

    def logits_of(variables, batch):
        numbers = (layout, "HWIO", "NHWC")
        made = lax.conv_general_dilated(
            batch["photo"]["pixels"], variables.params["w"], (1, 1), "SAME", dimension_numbers=numbers
        )
        return jnp.tanh(made).mean((1, 2))

    def loss_fn(variables, batch, rng, train):
        logits = logits_of(variables, batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), variables, logits

    def right(logits, batch):
        return logits.argmax(-1) == batch["label"]

    return Task(
        init,
        loss_fn,
        optax.sgd(0.5),
        {"right": right},
        predict_fn=lambda variables, batch: {"logits": logits_of(variables, batch)},
    )


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return {
        "pixels": rng.normal(size=(RECORDS, 6, 5, 2)).astype(np.float32),
        "label": rng.integers(0, 3, RECORDS).astype(np.int32),
    }
