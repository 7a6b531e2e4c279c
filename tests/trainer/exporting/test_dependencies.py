"""Which inputs an output depends on."""

import jax
import jax.numpy as jnp
import pytest

from trainer.exporting.served_model import dependencies


def separate(a, b, c):
    return a + 1, b * c, jnp.zeros(3)


def through_a_loop(a, b, c):
    return *jax.lax.fori_loop(0, 2, lambda _, carry: (carry[1], carry[0]), (a, b)), c


@jax.custom_jvp
def doubled(x, y):
    return 2 * x, y


doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (separate, [{0}, {1, 2}, set()]),
        (jax.jit(separate), [{0}, {1, 2}, set()]),
        (jax.jit(lambda a, b, c: jax.jit(separate)(c, b, a)), [{2}, {0, 1}, set()]),
        (jax.checkpoint(separate), [{0}, {1, 2}, set()]),
        (lambda a, b, c: (*doubled(a, b), c), [{0, 1}, {0, 1}, {2}]),  # JAX does not look into it
        (through_a_loop, [{0, 1}, {0, 1}, {2}]),
        (lambda a, b, c: (*jax.lax.fori_loop(0, 2, lambda _, ab: separate(*ab, c)[:2], (a, b)), c), [{0}, {1, 2}, {2}]),
        (lambda a, b, c: jax.lax.cond(c[0] > 0, separate, separate, a, b, c), [{0, 2}, {1, 2}, {2}]),
        (lambda a, b, c: (a, b, a), [{0}, {1}, {0}]),
    ],
    ids=["plain", "jit", "nested", "checkpoint", "custom", "loop", "parts of a loop", "condition", "inputs"],
)
def test_an_output_depends_on_what_it_is_computed_from(function, expected):
    rows = jnp.ones(3)
    assert dependencies(jax.make_jaxpr(function)(rows, rows, rows)) == expected
