"""Products: their FLOPs by hand, that XLA computes all of them, and which ones there is time for."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.loop.flops import flops
from trainer.measuring.products import convolution, matmul, measure_products
from trainer.measuring.repeating import Deadline

MATMUL, CONVOLUTION = matmul(16, "float32"), convolution(2, 5, 4, "float32")


class Ticking:
    """A clock that each look at moves by a second: every call takes one second."""

    now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def measured(products, seconds):
    return list(measure_products(products, jax.devices()[0], Deadline.after(seconds, Ticking())))


@pytest.mark.parametrize(
    ("product", "by_hand"),
    [
        (MATMUL, 2 * 16 * 16 * 16),
        # Of 3 taps, the first and the last of 5 places in a row lack one: 13 pairs in each dimension.
        (CONVOLUTION, 2 * 2 * 13 * 13 * 4 * 4),
    ],
    ids=["matmul", "convolution"],
)
def test_flops_are_two_per_multiply_add_and_a_chain_has_those_of_all_its_products(product, by_hand):
    assert product.flops == by_hand
    given = [jax.ShapeDtypeStruct(shape, "float32") for shape in (product.left, product.right)]
    for unroll in (1, 6):
        assert flops(jax.make_jaxpr(product.chained(6, unroll))(*given)) == 6 * by_hand


@pytest.mark.parametrize(("product", "operation"), [(MATMUL, " dot("), (CONVOLUTION, " convolution(")])
def test_a_chain_that_xla_compiled_has_all_its_products_and_no_loop(product, operation):
    left, right = product.operands(jax.devices()[0])
    compiled = jax.jit(product.chained(5, 5)).lower(left, right).compile()
    assert (compiled.as_text().count(operation), compiled.as_text().count(" while(")) == (5, 0)


def test_each_product_takes_the_result_of_the_one_before():
    left, right = map(np.asarray, MATMUL.operands(jax.devices()[0]))
    chained = jax.jit(MATMUL.chained(3, 3))(left, right)
    np.testing.assert_allclose(chained, left @ right @ right @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_operands_and_results_have_the_dtype_and_numbers_stay_as_large_as_they_are(dtype):
    for product in (matmul(64, dtype), convolution(1, 8, 16, dtype)):
        left, right = product.operands(jax.devices()[0])
        result = jax.jit(product.chained(16, 1))(left, right)
        assert (left.dtype, right.dtype, result.dtype) == (dtype, dtype, dtype)
        assert 0.05 < float(jnp.std(result.astype(jnp.float32))) < 20


def test_only_float32_highest_has_the_highest_precision():
    text = [
        str(jax.make_jaxpr(matmul(8, dtype).chained(1, 1))(*matmul(8, dtype).operands(jax.devices()[0])))
        for dtype in ("float32", "float32_highest")
    ]
    assert ["HIGHEST" in each for each in text] == [False, True]


def test_a_second_per_product_is_a_rate_of_its_flops():
    (row,) = measured([MATMUL], 100)
    assert (row.measurement, row.size, row.dtype, row.repetitions) == ("matmul", "16x16", "float32", 7)
    assert (row.median, row.low, row.high) == pytest.approx((8192e-12,) * 3)


def test_a_product_that_would_take_too_long_does_not_start():
    huge = matmul(10**6, "float32")  # 4 TB per operand: it could not start
    small, large = measured([MATMUL, huge], 60)
    assert small.median is not None
    assert large.median is None
    assert large.skipped.startswith(f"would take {5 * (10**6 / 16) ** 3:.2g} s, ")
    assert large.skipped.endswith(" s are left")


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError("UNIMPLEMENTED: no kernel\nmore"), MemoryError()])
def test_a_product_that_the_device_cannot_compute_is_a_row_that_says_so(error):
    def fails(left, right):
        raise error

    class Failing(type(MATMUL)):
        flops = 1.0

    failing = Failing(**{**vars(MATMUL), "multiply": fails})
    first, second = measured([failing, replace(MATMUL)], 100)
    assert first.skipped == (str(error).partition("\n")[0] or "out of memory")
    assert second.skipped is None
