"""The FLOPs of a traced step: against XLA's analysis where it counts right, otherwise against arithmetic."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from trainer.loop.program import flops

ROWS, WIDTH = 8, 16
PRODUCT = 2 * ROWS * WIDTH * WIDTH
X, W = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)


def counted(function, *given):
    return flops(jax.make_jaxpr(function)(*given))


def layers(x, w, times=5, remat=False):
    layer = jax.checkpoint(lambda x: jnp.tanh(x @ w)) if remat else lambda x: jnp.tanh(x @ w)
    return lax.scan(lambda x, _: (layer(x), None), x, length=times)[0].sum()


@pytest.mark.parametrize("options", [{}, {"padding": "VALID"}, {"stride": 2}, {"groups": 2}, {"dilation": 2}], ids=repr)
def test_a_convolution_and_its_gradients_count_as_xla_counts_them(options):
    images, groups = jax.ShapeDtypeStruct((2, 9, 8, 4), jnp.float32), options.get("groups", 1)
    kernel = jax.ShapeDtypeStruct((3, 2, 4 // groups, 6), jnp.float32)

    def convolve(images, kernel):
        return lax.conv_general_dilated(
            *(images, kernel, [options.get("stride", 1)] * 2, options.get("padding", "SAME")),
            rhs_dilation=[options.get("dilation", 1)] * 2,
            feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def gradients(images, kernel):
        out, pull = jax.vjp(convolve, images, kernel)
        return pull(out)

    for function in (convolve, gradients):
        xla = jax.jit(function).lower(images, kernel).cost_analysis()["flops"]
        assert counted(function, images, kernel) == xla


def test_a_product_counts_as_xla_counts_it():
    batched = partial(jnp.einsum, "bij,bjk->bik")
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 4, 5), (3, 5, 6))]
    assert counted(batched, *given) == jax.jit(batched).lower(*given).cost_analysis()["flops"] == 2 * 3 * 4 * 5 * 6


def test_the_body_of_a_loop_counts_as_often_as_it_runs():
    assert counted(layers, X, W) == 5 * PRODUCT
    assert counted(jax.grad(layers, (0, 1)), X, W) == 3 * 5 * PRODUCT
    assert counted(lambda x, w: lax.fori_loop(0, 7, lambda _, x: x @ w, x), X, W) == 7 * PRODUCT


def test_what_is_rematerialized_counts_twice():
    assert counted(jax.grad(partial(layers, remat=True), (0, 1)), X, W) == 4 * 5 * PRODUCT


def test_the_largest_branch_of_a_condition_counts():
    assert counted(lambda x, w: lax.cond(x[0, 0] > 0, lambda: x, lambda: x @ w @ w), X, W) == 2 * PRODUCT


def test_a_part_of_each_device_counts_on_every_device():
    mesh = Mesh(jax.devices()[:2], ("data",))
    rows = PartitionSpec("data")
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows)
    assert counted(split, X, W) == PRODUCT
