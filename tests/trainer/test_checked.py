"""The squares that the finite check reads: as exact as a float32 can be, in any dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.gradients import _beginning_on_devices, finder_of_broken, squares
from trainer.mesh import Placement


def norm(tree):
    return jax.jit(lambda tree: jnp.sqrt(sum(squares(tree), jnp.float32(0))))(tree)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16, jnp.complex64])
def test_the_norm_is_that_of_all_numbers_in_float32(dtype):
    rng = np.random.default_rng(0)
    tree = {"a": jnp.asarray(rng.standard_normal((300, 70)), dtype), "b": [jnp.asarray(rng.standard_normal(5), dtype)]}
    exact = np.sqrt(sum(np.sum(np.abs(np.asarray(leaf, np.complex128)) ** 2) for leaf in jax.tree.leaves(tree)))
    found = norm(tree | {"count": jnp.int32(7)})  # integers are no part of it
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_squares_beyond_a_half_float_do_not_make_the_norm_infinite():
    assert float(norm(jnp.full(4, 300.0, jnp.float16))) == 600.0


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_one_non_finite_number_makes_the_norm_non_finite(broken):
    array = jnp.zeros((17, 33)).at[16, 32].set(broken)
    assert not np.isfinite(norm([jnp.ones(3), array]))


def test_the_norm_of_no_arrays_is_zero():
    assert float(norm({})) == 0.0


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({"count": np.int32(3)}, ""),
        ({"a": np.full(4, 3e38, np.float32), "b": np.ones(2, np.float32)}, ""),
        ({"a": np.full(4, 3e38, np.float32), "b": np.float32([1, np.nan])}, "b"),
        ({"a": jnp.ones(3, jnp.bfloat16), "b": jnp.array([1, jnp.inf], jnp.bfloat16)}, "b"),
    ],
    ids=["no numbers with a fraction", "squares that overflow", "a NaN beside them", "16 bits"],
)
@pytest.mark.parametrize("begins", [finder_of_broken, _beginning_on_devices], ids=["on a CPU", "elsewhere"])
def test_what_is_saved_is_broken_only_if_a_number_is_not_finite(begins, state, found):
    assert begins(Placement.of(jax.devices()[:1]))(state)() == found
