"""One sum for an array's numbers however it is cut, and another one for other numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.checkpointing.arrays import array_sums, cut_of
from trainer.mesh import Placement

NUMBERS = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
CUTS = {
    "whole": P(),
    "rows": P("data"),
    "columns": P(None, "data"),
    "both": P("data", "model"),
    "fine": P(("data", "model")),
}


def laid_out(spec, devices=4, model=2, numbers=NUMBERS):
    return {
        "a": jax.device_put(numbers, NamedSharding(Placement.of(jax.devices()[:devices], {"model": model}).mesh, spec))
    }


@pytest.mark.parametrize("spec", CUTS.values(), ids=CUTS)
def test_an_array_saved_in_any_cut_is_proven_where_devices_hold_all_of_it(spec):
    saved = laid_out(spec)
    cuts = {"a": cut_of(saved["a"])}
    assert array_sums(laid_out(P()), cuts) == array_sums(laid_out(P(), devices=1, model=1), cuts) == array_sums(saved)


@pytest.mark.parametrize(
    ("then", "now", "proven"),
    [("fine", "rows", True), ("both", "rows", True), ("rows", "fine", False), ("rows", "columns", False)],
)
def test_an_array_is_proven_in_another_cut_only_if_that_one_is_coarser(then, now, proven):
    saved, restored = laid_out(CUTS[then]), laid_out(CUTS[now])
    again = array_sums(restored, {"a": cut_of(saved["a"])})
    assert again == (array_sums(saved) if proven else {"a": None})


def test_every_flipped_bit_and_parts_that_changed_places_give_another_sum():
    numbers = NUMBERS[:4, :2].copy()
    sums = [array_sums(laid_out(P("data"), 4, 1, numbers))["a"]]
    sums.append(array_sums(laid_out(P("data"), 4, 1, numbers[[2, 1, 0, 3]]))["a"])
    for bit in range(numbers.nbytes * 8):
        octets = np.frombuffer(numbers.tobytes(), np.uint8).copy()
        octets[bit // 8] ^= 1 << (bit % 8)
        sums.append(array_sums({"a": jnp.asarray(octets.view(np.float32).reshape(4, 2))}, {"a": [4, 1]})["a"])
    assert len(set(sums)) == len(sums) == 2 + 256


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "bool", "complex64", "uint8"])
def test_checksums_distinguish_arrays_of_every_dtype(dtype):
    one, other = {"a": jnp.ones((3, 2), dtype)}, {"a": jnp.zeros((3, 2), dtype)}
    assert array_sums(one) == array_sums(one) != array_sums(other)


def test_random_keys_single_numbers_and_empty_arrays_have_sums():
    assert array_sums({"k": jax.random.key(3)}) != array_sums({"k": jax.random.key(4)})
    assert array_sums({"n": jnp.int32(3)}) != array_sums({"n": jnp.int32(4)})
    assert array_sums({"e": jnp.zeros((0, 3))}) == {"e": 0}
