"""Vision Transformers train as a program of the paper's equations does, also split over devices."""

from dataclasses import replace

import jax
import numpy as np
import optax
import plain_vit
import pytest

from trainer.models.pixels import STATISTICS
from trainer.models.vit import VARIANTS, Vit, VitShape
from trainer.nnx_task import nnx_task
from trainer.optimizers.build import make_optimizer
from trainer.optimizers.config import OptimizerConfig, Run
from trainer.step.steps import train_step
from trainer.task import TrainState, Variables
from trainer.trainer import Trainer

CLASSES, RATE, ROWS = 3, 16.0, 8
SGD = optax.sgd(RATE)
RNG = np.random.default_rng(0)
BATCH = {
    "image": RNG.integers(0, 256, (ROWS, 8, 8, 3), np.uint8),
    "label": RNG.integers(0, CLASSES, ROWS).astype(np.int32),
}


def task_of(variant="timm", optimizer=SGD, precision="f32", **options):
    """Two layers and four patches, and parameters that are all in use from the first step."""
    shape = VitShape(2, 16, 2, patch=4, **VARIANTS[variant])

    def make(rngs):
        return Vit(shape, CLASSES, 8, rngs, statistics=STATISTICS["inception"], **options)

    def loss(model, batch):
        logits = model(batch["image"], batch["_mask"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), logits

    task = nnx_task(make, loss, optimizer, precision=precision)
    shapes = jax.eval_shape(lambda: task.init(jax.random.key(0), None)).params
    rng = np.random.default_rng(1)
    params = {
        name: rng.normal(size=leaf.shape).astype(np.float32) / 3 for name, leaf in shapes.items()
    }
    return replace(task, init=lambda *_: Variables(params, {})), params


@pytest.mark.parametrize(
    ("variant", "settings", "remat"),
    [
        ("timm", {}, "none"),
        pytest.param("big_vision", {}, "none", marks=pytest.mark.slow),
        pytest.param("transformers", {"mesh": "fsdp=4"}, "full", marks=pytest.mark.slow),
        ("big_vision", {"mesh": "data=2,fsdp=2", "accumulate": 2}, "dots"),
    ],
)
def test_a_step_has_the_loss_and_the_gradients_of_a_program_in_plain_jax(
    config, make_input, monkeypatch, variant, settings, remat
):
    monkeypatch.setattr("trainer.mesh.placement.FLOOR", 1)
    task, params = task_of(variant, remat=remat)
    devices = jax.devices() if settings else jax.devices()[:1]
    trainer = Trainer(task, config(global_batch_size=ROWS, **settings), devices)
    result = trainer.train(lambda ctx: make_input(BATCH, ctx), max_steps=1)

    def loss(params):
        options = {"exact": variant != "big_vision"}
        if variant == "transformers":
            options["epsilon"] = 1e-12
        logits = plain_vit.logits(params, BATCH["image"] / np.float32(127.5) - 1, **options)
        return plain_vit.cross_entropy(logits, BATCH["label"]).mean()

    expected, gradients = jax.jit(jax.value_and_grad(loss))(params)
    assert result.metrics["loss"] == pytest.approx(float(expected), rel=1e-6)
    after = result.state.variables.params
    assert after.keys() == gradients.keys()
    split = [name for name, leaf in after.items() if not leaf.sharding.is_fully_replicated]
    assert bool(split) == bool(settings)
    for name, gradient in gradients.items():
        found = (params[name] - np.asarray(after[name])) / RATE
        if name == "layers/attention/key/bias":  # it moves all scores of a place alike
            np.testing.assert_allclose(found, 0, atol=1e-6)
        else:
            assert np.abs(found - gradient).max() <= 1e-5 * np.abs(gradient).max(), name


def test_the_statistics_of_norms_are_float32_in_bfloat16():
    task, params = task_of(precision="bf16")
    batch = BATCH | {"_mask": np.ones(ROWS, np.float32)}
    forward = jax.make_jaxpr(lambda *given: task.loss_fn(*given, jax.random.key(0), True)[0])
    text = str(forward(Variables(params, {}), batch))
    roots = [line for line in text.splitlines() if "= rsqrt" in line]
    assert len(roots) == 3
    assert all(":f32[" in line for line in roots)


def test_a_step_that_trains_the_head_alone_has_no_backward_pass_of_the_layers():
    batch = BATCH | {"_mask": np.ones(ROWS, np.float32)}
    flops = {}
    for freeze in ((), ("[!h]*",)):
        optimizer = make_optimizer(OptimizerConfig(freeze=freeze), Run(9, ROWS))
        task, params = task_of(optimizer=optimizer)
        key = jax.random.key_data(jax.random.key(0))
        begun = optimizer.init(params)
        state = TrainState(jax.numpy.int32(0), Variables(params, {}), begun, key, ())
        compiled = jax.jit(train_step(task)).lower(state, batch).compile()
        flops[freeze] = compiled.cost_analysis()["flops"]
    assert flops["[!h]*",] < 0.4 * flops[()]


@pytest.mark.parametrize("variant", ["timm", "big_vision"])
def test_the_number_of_rows_may_be_unknown_as_in_an_export(variant):
    task, params = task_of(variant)
    images = jax.ShapeDtypeStruct(jax.export.symbolic_shape("rows, 8, 8, 3"), np.uint8)
    logits = jax.eval_shape(task.module(Variables(params, {})), images)
    assert str(logits.shape) == "(rows, 3)"


def test_rematerialization_keeps_less_for_the_backward_pass():
    batch = BATCH | {"_mask": np.ones(ROWS, np.float32)}

    def kept(remat):
        task, params = task_of(remat=remat)

        def losses(params):
            return task.loss_fn(Variables(params, {}), batch, jax.random.key(0), True)[0]

        residuals = jax.eval_shape(lambda params: jax.vjp(losses, params)[1], params)
        return sum(leaf.size for leaf in jax.tree.leaves(residuals))

    assert kept("none") > 2 * kept("dots") > 3 * kept("full")
