"""The published settings of ImageNet: learning rates, weight decay, flags that override them, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
from flax import nnx

from pipeline.errors import OptionError
from trainer.commands.loading import parsed
from trainer.models.resnet import RESNETS, ResNet
from trainer.optimizers.build import groups_of, learning_rate
from trainer.optimizers.config import Run
from trainer.recipes.imagenet_resnet50 import Config, TpuConfig

TRAIN_IMAGES = 1_281_167
NEEDED = ("--data-dir", "data", "--workdir", "work")


def of_flags(*flags, kind=Config) -> Any:
    return parsed(kind, [*NEEDED, *flags], "train")[0]


def flax_rate(step, batch):
    """https://github.com/google/flax/blob/main/examples/imagenet/train.py: warm-up, then a cosine, by whole epochs."""
    epoch, highest = step / (TRAIN_IMAGES // batch), 0.1 * batch / 256
    return highest * min(epoch / 5, 0.5 * (1 + math.cos(math.pi * max(epoch - 5, 0) / 95)))


def tpu_rate(step, batch):
    """https://github.com/tensorflow/tpu/blob/master/models/official/resnet/resnet_main.py, learning_rate_schedule."""
    epoch, highest = step * batch / TRAIN_IMAGES, 0.1 * batch / 256
    for start, factor in ((80, 0.001), (60, 0.01), (30, 0.1), (5, 1.0)):
        if epoch >= start:
            return highest * factor
    return highest * epoch / 5


@pytest.mark.parametrize("batch", [1024, 256])
@pytest.mark.parametrize(
    ("kind", "formula", "epochs"), [(Config, flax_rate, 100), (TpuConfig, tpu_rate, 90)]
)
def test_the_learning_rate_is_that_of_the_published_formula(kind, formula, epochs, batch):
    steps_of_epoch = TRAIN_IMAGES // batch
    steps = steps_of_epoch * epochs
    if batch == kind.trainer.global_batch_size:
        assert kind.trainer.max_steps == steps
    schedule = learning_rate(kind.optimizer, Run(steps, batch))
    at = [
        0,
        100,
        steps_of_epoch,
        *(round(steps_of_epoch * epoch) for epoch in (4.9, 7, 29, 31, 59, 79, 85)),
        steps - 1,
    ]
    assert [float(schedule(step)) for step in at] == pytest.approx(
        [formula(step, batch) for step in at],
        rel=1e-3,  # an epoch is not a whole number of batches
        abs=1e-6,
    )


def test_weight_decay_applies_to_kernels_with_flax_and_to_all_but_batch_norms_with_tpu():
    model = nnx.eval_shape(lambda: ResNet(RESNETS["resnet50"], 1000, nnx.Rngs(0)))
    leaves = nnx.to_flat_state(nnx.state(model, nnx.Param))
    shapes = {"/".join(map(str, path)): leaf.get_value().shape for path, leaf in leaves}

    def decaying(config):
        return {name for name, group in groups_of(config, shapes).items() if group.decays}

    kernels = {name for name in shapes if name.endswith("/kernel")}
    assert len(kernels) == 54  # 53 convolutions and the head
    assert decaying(Config.optimizer) == kernels
    assert decaying(TpuConfig.optimizer) == {*kernels, "head/bias"}
    # scale and bias of a norm after each convolution
    assert len(shapes) - len(kernels) - 1 == 2 * 53


def test_flags_override_the_published_settings():
    flax = of_flags()
    tpu = of_flags("--schedule", "cosine", "--decay-at", "--max-steps", "9", kind=TpuConfig)
    flags = ("--resizing", "bicubic", "--min-area", "0.5", "--random-erasing", "0.1")
    augmented = of_flags(*flags)
    assert (augmented.resizing, augmented.min_area, augmented.random_erasing) == (
        "bicubic",
        0.5,
        0.1,
    )
    assert (flax.bn_span, flax.trainer.max_steps, flax.trainer.precision) == (32, 125_100, "bf16")
    assert (tpu.bn_span, tpu.trainer.max_steps, tpu.optimizer.schedule) == (128, 9, "cosine")
    assert tpu.optimizer == replace(TpuConfig.optimizer, schedule="cosine", decay_at=())
    for config in (flax, tpu):
        assert (config.model, config.size, config.min_area, config.resizing) == (
            "resnet50",
            224,
            0.08,
            "bilinear",
        )
        assert config.optimizer.nesterov
        assert (config.optimizer.momentum, config.label_smoothing) == (0.9, 0.0)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--global-batch-size", "100"), "bn_span=32 does not divide the 100 rows"),
        (("--accumulate", "64"), "bn_span=32 does not divide the 16 rows"),
        (("--bn-span", "0"), "bn_span=0"),
        (("--model", "cnn"), "model=cnn, which has no batch norm"),
    ],
)
def test_invalid_flags_are_refused(flags, text):
    with pytest.raises(OptionError, match=text):
        of_flags(*flags)


def test_an_evaluation_accepts_a_batch_size_that_bn_span_does_not_divide():
    assert of_flags("--mode", "evaluate", "--global-batch-size", "100").bn_span == 32
