"""Attention by jax's kernel for TPUs is XLA's, keeps nothing of length x length, and is chosen where it can run."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.errors import OptionError
from trainer.config import TrainerConfig
from trainer.mesh.placement import Placement
from trainer.models.transformer import Transformer, attended, splashed, splashed_or_xla
from trainer.recipes.language_models import ByteLm
from trainer.serving.publishing import PLATFORMS

LENGTH = 256
ONE = np.ones((4, LENGTH), np.int32)
SEVERAL = np.repeat(np.arange(1, 9, dtype=np.int32), LENGTH // 8).reshape(1, -1).repeat(4, 0)
SEVERAL[1, 200:] = 0  # padding
SEVERAL[2] = np.arange(LENGTH) // 100
by_xla = functools.partial(attended, kernel="xla")
interpreted = functools.partial(splashed, interpret=True)


def arrays(dtype, heads=2, features=128):
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (4, LENGTH, heads, features), dtype) for key in keys]


def with_gradients(attend, segment_ids, query, key, value, weights):
    """The result, and the gradients of its sum with these weights."""

    def loss(*given):
        result = attend(*given, segment_ids)
        return (result.astype(jnp.float32) * weights).sum(), result

    gradients, result = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(query, key, value)
    return [np.asarray(each, np.float32) for each in (result, *gradients)]


# Of values up to 4 and gradients up to 6; bfloat16 has 8 bits, so the last of 4 is 0.03.
@pytest.mark.parametrize(
    ("segment_ids", "dtype", "most"),
    [(ONE, jnp.float32, 1e-5), (SEVERAL, jnp.float32, 1e-5), (SEVERAL, jnp.bfloat16, 0.04)],
    ids=["one segment", "several", "several bfloat16"],
)
def test_values_and_gradients_are_those_of_xla(dtype, most, segment_ids):
    given = arrays(dtype)
    expected = with_gradients(by_xla, segment_ids, *given)
    for found, by in zip(with_gradients(interpreted, segment_ids, *given), expected, strict=True):
        assert np.abs(found - by).max() <= most


@pytest.mark.parametrize("sizes", [{"fsdp": 2}, {"model": 2}])
def test_rows_and_heads_may_be_split_over_devices(sizes):
    query, key, value, _ = arrays(jnp.float32)
    mesh = Placement.of(sizes=sizes).mesh
    with jax.set_mesh(mesh):
        split = jax.jit(interpreted)(query, key, value, SEVERAL)
    assert split.addressable_shards[0].data.size == query.size / 4
    np.testing.assert_allclose(split, by_xla(query, key, value, SEVERAL), atol=1e-5)


def lowered(kernel, platform):
    """The text of a training step's gradients for this platform, and of the logits alone."""

    def logits(params, ids):
        return nnx.merge(graph, params, others)(ids, ids, ids)

    made = nnx.eval_shape(
        lambda: Transformer(512, nnx.Rngs(0), layers=2, width=128, heads=1, kernel=kernel)
    )
    graph, params, others = nnx.split(made, nnx.Param, ...)
    ids = jax.ShapeDtypeStruct((4, LENGTH), jnp.int32)
    gradient = jax.grad(lambda params, ids: logits(params, ids).sum())
    return [
        jax.jit(function).trace(params, ids).lower(lowering_platforms=(platform,)).as_text()
        for function in (gradient, logits)
    ]


def test_a_step_for_tpus_has_no_array_of_length_x_length():
    square = re.compile(rf"{LENGTH}x{LENGTH}x")
    for text in lowered("splash", "tpu"):
        assert "tpu_custom_call" in text
        assert not square.search(text)
    assert all(map(square.search, lowered("xla", "tpu")))


def test_what_is_not_trained_runs_on_any_device():
    given = *arrays(jnp.float32)[:3], SEVERAL
    for function in (splashed_or_xla, jax.jit(splashed_or_xla)):
        np.testing.assert_array_equal(function(*given), jax.jit(by_xla)(*given))
    for platforms in (PLATFORMS, ("cpu",), ("tpu",)):  # as of an export
        text = jax.jit(splashed_or_xla).trace(*given).lower(lowering_platforms=platforms).as_text()
        assert ("tpu_custom_call" in text) == ("tpu" in platforms)


@pytest.fixture
def kernel_of(monkeypatch):
    """kernel_of(backend, length, **settings) -> what ByteLm chooses there."""

    def chosen(backend, length, **settings):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        monkeypatch.setattr("trainer.recipes.language_models.TINY_LENGTH", length)
        trainer = TrainerConfig(workdir="w", global_batch_size=8)
        return ByteLm(tiny=True, trainer=trainer, **settings).kernel

    return chosen


@pytest.mark.parametrize(
    ("backend", "length", "heads", "kernel"),
    [
        ("tpu", 256, 1, "splash"),
        ("tpu", 200, 1, "xla"),
        ("tpu", 256, 2, "xla"),
        ("gpu", 256, 1, "xla"),
        ("cpu", 256, 1, "xla"),
    ],
)
def test_auto_chooses_what_the_devices_and_rows_allow_and_says_so(
    kernel_of, caplog, backend, length, heads, kernel
):
    caplog.set_level("INFO")
    assert kernel_of(backend, length, heads=heads) == kernel
    assert f"attention: {kernel}, for auto" in caplog.text


@pytest.mark.parametrize(
    ("backend", "length", "text"),
    [
        ("cpu", 256, "attention=splash needs a TPU and .* This process has cpu"),
        ("tpu", 200, "a multiple of 128 tokens. This process has tpu, and rows of 200 tokens"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused(kernel_of, backend, length, text):
    with pytest.raises(OptionError, match=text):
        kernel_of(backend, length, attention="splash")
