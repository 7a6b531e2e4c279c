"""Programs: a second run finds them on disk, and the FLOPs of a step."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, PartitionSpec

from trainer.loop.compiled import has_convolution
from trainer.loop.flops import flops
from trainer.task import Task, Variables
from trainer.trainer import Trainer


@pytest.fixture
def compilations():
    """compilations(): how often JAX looked into its cache since the last call, and how often it found something."""
    counts = Counter()

    def count(event, **_):
        counts[event.rpartition("/")[2]] += 1

    def since():
        looked, found = counts["compile_requests_use_cache"], counts["cache_hits"]
        counts.clear()
        return looked, found

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)  # JAX's default
    jax.monitoring.register_event_listener(count)
    yield since
    jax.monitoring.unregister_event_listener(count)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def smallest_task():
    def loss_fn(variables, batch, rng, train):
        return jnp.square(batch["x"] @ variables.params), variables, None

    return Task(lambda rng, spec: Variables(jnp.zeros(8)), loss_fn, optax.sgd(0.1))


def test_a_second_run_compiles_nothing(smallest_task, vector_input, config, tmp_path, compilations):
    def run(name):
        jax.clear_caches()  # what a new process does not have
        trainer = Trainer(
            smallest_task, config(name, compilation_cache_dir=str(tmp_path / "cache"))
        )
        trainer.train(vector_input, steps=1)
        trainer.evaluate(vector_input)
        return compilations()

    looked, found = run("first")
    assert looked - found >= 3  # the state, a step of training, one of evaluation
    kept = sorted((tmp_path / "cache").iterdir())
    assert run("second") == (looked, looked)
    assert sorted((tmp_path / "cache").iterdir()) == kept


ROWS, WIDTH = 8, 16
PRODUCT = 2 * ROWS * WIDTH * WIDTH
X, W = (
    jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
)


def counted(function, *given):
    return flops(jax.make_jaxpr(function)(*given))


def layers(x, w, times=5, remat=False):
    layer = jax.checkpoint(lambda x: jnp.tanh(x @ w)) if remat else lambda x: jnp.tanh(x @ w)
    return lax.scan(lambda x, _: (layer(x), None), x, length=times)[0].sum()


@pytest.mark.parametrize(
    "options", [{}, {"padding": "VALID"}, {"stride": 2}, {"groups": 2}, {"dilation": 2}], ids=repr
)
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
    assert (
        counted(batched, *given)
        == jax.jit(batched).lower(*given).cost_analysis()["flops"]
        == 2 * 3 * 4 * 5 * 6
    )


def test_the_body_of_a_loop_counts_as_often_as_it_runs():
    assert counted(layers, X, W) == 5 * PRODUCT
    assert counted(jax.grad(layers, (0, 1)), X, W) == 3 * 5 * PRODUCT
    assert counted(lambda x, w: lax.fori_loop(0, 7, lambda _, x: x @ w, x), X, W) == 7 * PRODUCT


def test_what_is_rematerialized_counts_twice():
    assert counted(jax.grad(partial(layers, remat=True), (0, 1)), X, W) == 4 * 5 * PRODUCT


def test_the_largest_branch_of_a_condition_counts():
    assert (
        counted(lambda x, w: lax.cond(x[0, 0] > 0, lambda: x, lambda: x @ w @ w), X, W)
        == 2 * PRODUCT
    )


def test_a_part_of_each_device_counts_on_every_device():
    mesh = Mesh(jax.devices()[:2], ("data",))
    rows = PartitionSpec("data")
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows)
    assert counted(split, X, W) == PRODUCT


def test_a_convolution_is_found_inside_calls_and_branches():
    kernel = np.ones((3, 1, 1), np.float32)

    def convolve(x):
        return jax.lax.conv_general_dilated(
            x, kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
        )

    def hidden(x):
        return jax.lax.cond(x.sum() > 0, jax.jit(convolve), lambda x: x, x)

    x = np.ones((1, 4, 1), np.float32)
    assert has_convolution(jax.make_jaxpr(convolve)(x))
    assert has_convolution(jax.make_jaxpr(hidden)(x))
    assert not has_convolution(jax.make_jaxpr(lambda x: x @ x.T)(np.ones((2, 2))))
