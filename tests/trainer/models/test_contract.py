"""What every model does: shapes, dtypes, gradients, and rows of padding that change nothing."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from pipeline.shards.schema import ColumnStatistics
from trainer.models.pixels import STATISTICS
from trainer.models.resnet import RESNETS, ResNet
from trainer.models.small import SmallCnn, TabularMlp
from trainer.models.vit import VITS, Vit, VitShape
from trainer.nnx_task import nnx_task

NUM_CLASSES, ROWS = 3, 8
MASK = np.array([1, 0, 1, 1, 1, 1, 0, 1], np.float32)
REAL = MASK > 0


@dataclass(frozen=True)
class Row:
    """make: the model, from nnx.Rngs. image: the shape of one."""

    make: Callable[[nnx.Rngs], Any]
    image: tuple[int, int, int]


def narrow(name, image, **settings):
    """A residual network with two stages of few channels, and every parameter in use from the first step."""
    shape = replace(RESNETS[name], depths=(1, 1), widths=(4, 6))
    settings = {"channels": image[2], "bn_span": 4, "zero_last_scale": False} | settings
    return Row(lambda rngs: ResNet(shape, NUM_CLASSES, rngs, **settings), image)


def vit(**variant):
    """A Vision Transformer of two layers and four patches, with a head that is no longer zero."""
    shape = VitShape(2, 16, 2, patch=4, **variant)

    def make(rngs):
        model = Vit(shape, NUM_CLASSES, 8, rngs, statistics=STATISTICS["inception"])
        kernel = model.head.kernel
        kernel.set_value(jax.random.normal(jax.random.key(1), kernel.get_value().shape))
        return model

    return Row(make, (8, 8, 3))


class PixelTable(nnx.Module):
    """TabularMlp; a pixel is a number, and another a class."""

    def __init__(self, rngs):
        statistics = {
            "number": ColumnStatistics(ROWS, 0, 128.0, 70.0, 0.0, 255.0),
            "class": ColumnStatistics(ROWS, 0, categories={"a": 4, "b": 4}),
        }
        self.model = TabularMlp(
            statistics, dict.fromkeys(statistics, 1), NUM_CLASSES, rngs, widths=(8,), dropout=0.0
        )

    def __call__(self, images, mask):
        return self.model(
            {"number": images[:, 0, 0, 0], "class": images[:, 1, 0, 0].astype(jnp.int32) % 3 - 1}
        )


MODELS = {
    "tabular": Row(PixelTable, (8, 8, 1)),
    "cnn": Row(lambda rngs: SmallCnn(NUM_CLASSES, (8, 8, 1), rngs, (4, 6)), (8, 8, 1)),
    "resnet50": narrow("resnet50", (16, 16, 1)),  # grey images, for all of them
    "resnet20": narrow("resnet20", (8, 8, 3)),
    "vit": vit(),
    "vit of means": vit(pooling="mean", positions="sincos", gelu="tanh"),
}


def images_of(image, padding):
    """Random images; the rows that do not count have the value `padding`."""
    images = np.random.default_rng(0).integers(0, 256, (ROWS, *image), np.uint8)
    return np.where(REAL[:, None, None, None], images, np.uint8(padding))


@functools.cache
def task_of(name, precision="f32"):
    def loss(model, batch):
        logits = model(batch["image"], batch["_mask"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), logits

    return nnx_task(MODELS[name].make, loss, optax.sgd(0.1), precision=precision)


@functools.cache
def started(name, precision="f32"):
    return jax.jit(lambda: task_of(name, precision).init(jax.random.key(0), None))()


@functools.cache
def program(name, train):
    """(variables, batch) -> the gradients of the mean loss, the logits, and the model's other arrays."""

    def step(variables, batch):
        def mean_loss(params):
            losses, after, logits = task_of(name).loss_fn(
                variables._replace(params=params), batch, jax.random.key(1), train
            )
            return jnp.sum(losses * batch["_mask"]) / jnp.sum(batch["_mask"]), (logits, after.extra)

        return jax.grad(mean_loss, has_aux=True)(variables.params)

    return jax.jit(step)


def stepped(name, train=True, padding=0):
    batch = {
        "image": images_of(MODELS[name].image, padding),
        "label": np.arange(ROWS) % NUM_CLASSES,
        "_mask": MASK,
    }
    grads, (logits, extra) = program(name, train)(started(name), batch)
    return grads, logits, extra


def dtypes(arrays):
    return {str(array.dtype) for array in arrays.values()}


@pytest.mark.parametrize(
    "name",
    ["tabular", "cnn", pytest.param("resnet50", marks=pytest.mark.slow), "resnet20", "vit"],
)
def test_there_is_a_finite_float32_logit_for_each_class_and_a_gradient_reaches_every_parameter(
    name,
):
    grads, logits, _ = stepped(name)
    assert (logits.shape, logits.dtype) == ((ROWS, NUM_CLASSES), jnp.float32)
    assert np.isfinite(logits).all()
    assert grads.keys() == started(name).params.keys()
    assert [path for path, grad in grads.items() if not np.any(grad)] == []


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("train", [False, True])
def test_rows_of_padding_change_nothing(name, train):
    (grads, logits, extra), (same_grads, same_logits, same_extra) = (
        stepped(name, train, pad) for pad in (0, 255)
    )
    np.testing.assert_array_equal(logits[REAL], same_logits[REAL])
    jax.tree.map(np.testing.assert_array_equal, (grads, extra), (same_grads, same_extra))


@pytest.mark.parametrize("name", [name for name in MODELS if "resnet" in name])
def test_training_uses_the_statistics_of_the_batch_and_evaluation_the_running_ones(name):
    _, trained, after = stepped(name)
    _, evaluated, kept = stepped(name, train=False)
    assert np.abs(trained - evaluated).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, kept, started(name).extra)
    assert [path for path, array in after.items() if np.array_equal(array, kept[path])] == []


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_used_inside_layers_but_not_for_parameters_statistics_and_logits(name):
    task, spec = task_of(name, "bf16"), jax.ShapeDtypeStruct
    variables = jax.eval_shape(lambda: task.init(jax.random.key(0), None))
    assert dtypes(variables.params) | dtypes(variables.extra) == {"float32"}
    batch = {
        "image": spec((ROWS, *MODELS[name].image), jnp.uint8),
        "label": spec((ROWS,), jnp.int32),
        "_mask": spec((ROWS,), jnp.float32),
    }
    traced = jax.make_jaxpr(
        lambda *given: task.loss_fn(*given, jax.random.key(1), True), return_shape=True
    )
    jaxpr, (losses, after, logits) = traced(variables, batch)
    assert (losses.dtype, logits.dtype, dtypes(after.extra)) == (
        jnp.float32,
        jnp.float32,
        dtypes(variables.extra),
    )
    products = re.findall(r":(\w+)\[[^]]*\] = (?:conv_general_dilated|dot_general)\[", str(jaxpr))
    kernels = [path for path in variables.params if path.endswith("kernel")]
    in_float32 = "head" in str(kernels) and "vit" in name  # the head, and what attention adds up
    assert products.count("bf16") >= len(kernels) - in_float32


def published(name, classes, rngs):
    if name in RESNETS:
        return ResNet(RESNETS[name], classes, rngs)
    return Vit(VITS[name], classes, 224, rngs, statistics=STATISTICS["inception"])


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("resnet50", 1000, 25_557_032),  # torchvision's documentation
        ("resnet18", 1000, 11_689_512),
        ("resnet20", 10, 269_722),  # 0.27 M in table 6 of https://arxiv.org/abs/1512.03385
        ("vit_ti16", 1000, 5_717_416),  # timm's
        ("vit_s16", 1000, 22_050_664),
        ("vit_b16", 1000, 86_567_656),
    ],
)
def test_a_published_network_has_the_published_number_of_parameters(name, classes, count):
    model = nnx.eval_shape(lambda: published(name, classes, nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == count


def test_the_last_batch_norm_of_each_block_begins_with_scale_zero():
    def scales():  # without the kernels, which XLA then need not draw
        model: Any = narrow("resnet50", (16, 16, 3), zero_last_scale=True).make(nnx.Rngs(0))
        blocks = [model.stages[stage][0] for stage in "12"]
        norms = [
            [block.norms[number] for number in "123"] + [block.shortcut.norm] for block in blocks
        ]
        return [[norm.scale.get_value().max() for norm in of_block] for of_block in norms]

    assert jax.device_get(jax.jit(scales)()) == [[1, 1, 0, 1]] * 2


def test_the_bottleneck_of_v1_5_strides_in_its_3x3_convolution():
    model: Any = nnx.eval_shape(lambda: MODELS["resnet50"].make(nnx.Rngs(0)))
    block = model.stages["2"][0]
    convs = [block.convs[number] for number in "123"]
    assert [(conv.kernel_size[0], conv.strides) for conv in convs] == [(1, 1), (3, 2), (1, 1)]
    assert block.shortcut.conv.strides == 2
