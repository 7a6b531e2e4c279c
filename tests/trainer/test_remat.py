"""Rematerialisation changes what the backward pass keeps, and no value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.errors import OptionError
from trainer.remat import rematerialized

LAYERS, WIDTH = 6, 8


class Network(nnx.Module):
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

        return nnx.scan(rematerialized(layer, self.remat), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)


def gradients_of(remat):
    graph, params = nnx.split(Network(remat, nnx.Rngs(0)))

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params)(x) ** 2)

    step = jax.jit(jax.grad(loss))
    x = jnp.ones((64, WIDTH))
    kept = step.lower(params, x).compile().memory_analysis().temp_size_in_bytes
    return [np.asarray(leaf) for leaf in jax.tree.leaves(step(params, x))], kept


def test_gradients_are_the_same_and_less_is_kept():
    (plain, all_kept), (dots, dots_kept), (full, least) = (gradients_of(remat) for remat in ("none", "dots", "full"))
    for others in (dots, full):
        for one, other in zip(plain, others, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    assert least < dots_kept < all_kept


def test_an_unknown_policy_is_refused():
    with pytest.raises(OptionError, match="remat='all' is not one of none, dots, full"):
        rematerialized(lambda x: x, "all")  # pyright: ignore
