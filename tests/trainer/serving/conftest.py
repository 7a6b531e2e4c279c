"""A classifier of tiny photographs, trained for a moment, to export."""

from dataclasses import dataclass
from typing import Any

import optax
import pytest
from flax import nnx

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.ops import DecodeCentralCrop
from trainer.config import TrainerConfig
from trainer.models.resnet import BatchNorm
from trainer.nnx_task import nnx_task
from trainer.recipes.tiny import tiny_images
from trainer.serving import verification
from trainer.trainer import Trainer

KEYS = ("image", "image/class/label")


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.norm = nnx.Linear(8 * 8 * 3, 16, rngs=rngs), BatchNorm(16, rngs=rngs)
        self.second = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, image: Any, mask: Any) -> Any:
        x = image.reshape(image.shape[0], -1) / 255
        return self.second(nnx.relu(self.norm(self.first(x), mask)))


def loss(model: Any, batch: Any) -> Any:
    logits = model(batch["image"], batch["_mask"])
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, batch["image/class/label"]
    ), logits


def right(logits: Any, batch: Any) -> Any:
    return logits.argmax(-1) == batch["image/class/label"]


def predict(model: Any, batch: Any) -> Any:
    logits = model(batch["image"], batch["_mask"])
    return {"class": logits.argmax(-1), "logits": logits, "label": batch["image/class/label"]}


@dataclass
class Photographs:
    """records: 130 for evaluation, in four classes. ops: of an evaluation."""

    records: Any
    trainer: Trainer
    ops: tuple[Any, ...] = (
        DecodeCentralCrop("image/encoded", into="image", size=(8, 8), resize_short=10),
    )

    def input(self, ctx: Any, *more: Any) -> Any:
        make = train_dataset if ctx.mode == "train" else eval_dataset
        return make(
            self.records,
            ops=[*self.ops, *more],
            keys=KEYS,
            global_batch=ctx.global_batch_size,
            hosts=ctx.hosts,
        )

    @property
    def labels(self) -> Any:
        return {"class": self.records.info.labels}


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    config = TrainerConfig(
        workdir=str(tmp_path_factory.mktemp("model")), global_batch_size=32, ema_decay=0.5, seed=3
    )
    task = nnx_task(Network, loss, optax.adam(0.01), {"accuracy": right}, predict)
    found = Photographs(
        tiny_images("validation", (20, 24, 3), 4, encoding="jpeg"), Trainer(task, config)
    )
    found.trainer.train(found.input, max_steps=3)
    return found


@pytest.fixture
def in_this_process(monkeypatch):
    """The verification calls the SavedModel here: importing TensorFlow in another process takes five seconds."""

    def served(saved_model: str, scratch: str, requests: Any, check: Any) -> Any:
        check()
        return verification.answer(saved_model, requests)

    monkeypatch.setattr(verification, "served", served)
