"""Which dtypes a precision means, and rematerialization, which changes what the backward pass keeps and no value."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from pipeline.errors import OptionError
from trainer.mesh.batch_spec import named_leaves
from trainer.models.transformer import rematerialized
from trainer.nnx_task import nnx_task
from trainer.trainer import Trainer

SPEC = {"x": jax.ShapeDtypeStruct((4, 8), jnp.float32)}


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.head = nnx.Linear(16, 3, dtype=jnp.float32, rngs=rngs)  # its own, which wins

    def __call__(self, x):
        return self.head(self.norm(self.first(x)))


def task_of(precision, seen=None, network=Network):
    def loss(model, batch):
        logits = model(batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        if seen is not None:
            seen.update(logits=logits.dtype, losses=losses.dtype)
        return losses, logits

    return nnx_task(network, loss, optax.adam(1e-2), precision=precision)


def dtypes(tree):
    return {
        str(leaf.dtype)
        for leaf in named_leaves(tree).values()
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }


def batch_of(vectors):
    return {key: jnp.asarray(array[:4]) for key, array in vectors.items()} | {"_mask": jnp.ones(4)}


@pytest.mark.parametrize(
    ("precision", "params", "multiplied"),
    [
        ("f32", "float32", {"f32"}),
        ("bf16", "float32", {"bf16", "f32"}),
        ("bf16_params", "bfloat16", {"bf16", "f32"}),
    ],
)
def test_parameters_products_and_losses_have_the_dtypes_of_the_precision(
    vectors, precision, params, multiplied
):
    seen = {}
    task = task_of(precision, seen)
    variables = task.init(jax.random.key(0), SPEC)
    _, after, _ = task.loss_fn(variables, batch_of(vectors), jax.random.key(1), True)
    assert dtypes(variables.params) == {params}
    assert dtypes(task.optimizer.init(variables.params)) == {params}
    assert dtypes(after.extra) == {"float32"}  # running statistics
    assert seen == {"logits": jnp.float32, "losses": jnp.float32}
    program = jax.jit(lambda *given: task.loss_fn(*given, jax.random.key(1), True)[0])
    text = program.lower(variables, batch_of(vectors)).as_text()
    assert set(re.findall(r"dot_general.*x(\w+)>$", text, re.MULTILINE)) == multiplied


def test_outputs_of_a_bfloat16_layer_are_cast(vectors):
    seen = {}
    task = task_of("bf16", seen, lambda rngs: nnx.Linear(8, 3, rngs=rngs))
    task.loss_fn(task.init(jax.random.key(0), SPEC), batch_of(vectors), jax.random.key(1), True)
    assert seen == {"logits": jnp.float32, "losses": jnp.float32}


def test_a_task_in_another_precision_than_the_configs_is_refused(config):
    with pytest.raises(OptionError, match="precision='bf16', but the task computes in 'f32'"):
        Trainer(task_of("f32"), config(precision="bf16"))


def test_an_unknown_precision_is_refused():
    with pytest.raises(OptionError, match="precision='fp16' is not one of f32, bf16, bf16_params"):
        task_of("fp16")


LAYERS, WIDTH = 6, 8


class Layered(nnx.Module):
    """Layers whose parameters are stacked, applied by one scan."""

    def __init__(self, remat, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def made(rngs):
            return nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        self.layers, self.remat = made(rngs), remat

    def __call__(self, x):
        def layer(x, linear):
            return nnx.gelu(jnp.sin(linear(x)))

        return nnx.scan(
            rematerialized(layer, self.remat), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry
        )(x, self.layers)


def gradients_of(remat):
    graph, params = nnx.split(Layered(remat, nnx.Rngs(0)))

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params)(x) ** 2)

    step = jax.jit(jax.grad(loss))
    x = jnp.ones((64, WIDTH))
    kept = step.lower(params, x).compile().memory_analysis().temp_size_in_bytes
    return [np.asarray(leaf) for leaf in jax.tree.leaves(step(params, x))], kept


@pytest.mark.slow
def test_gradients_are_the_same_and_less_is_kept():
    (plain, all_kept), (dots, dots_kept), (full, least) = (
        gradients_of(remat) for remat in ("none", "dots", "full")
    )
    for others in (dots, full):
        for one, other in zip(plain, others, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    assert least < dots_kept < all_kept


def test_an_unknown_policy_is_refused():
    with pytest.raises(OptionError, match="remat='all' is not one of none, dots, full"):
        rematerialized(lambda x: x, "all")  # pyright: ignore
