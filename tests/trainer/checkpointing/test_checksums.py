"""One sum for an array's numbers however it is split, and wherever it is computed; another one for other numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.checkpointing.arrays import _adder, begin_sums
from trainer.checkpointing.contents import AT_ONCE, array_sum
from trainer.mesh.placement import Placement

NUMBERS = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
SPLITS = {
    "whole": P(),
    "rows": P("data"),
    "columns": P(None, "data"),
    "both": P("data", "model"),
    "fine": P(("data", "model")),
}
DTYPES = [
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "int4",
    "uint4",
    "bool",
    "complex64",
    "uint8",
    "int32",
]


def sums(state):
    """As an accelerator or several processes compute them, which has to be as one process does on a CPU."""
    sharding = next(iter(state.values())).sharding
    replicated = NamedSharding(sharding.mesh, P()) if isinstance(sharding, NamedSharding) else None
    found = dict(zip(state, _adder(replicated)([*state.values()]).tolist(), strict=True))
    assert found == begin_sums(state)()
    return found


def laid_out(spec, devices=4, model=2, numbers=NUMBERS):
    mesh = Placement.of(jax.devices()[:devices], {"model": model}).mesh
    return {"a": jax.device_put(numbers, NamedSharding(mesh, spec))}


@pytest.mark.parametrize("spec", SPLITS.values(), ids=SPLITS)
def test_an_array_has_the_same_sum_however_devices_hold_it(spec):
    assert (
        sums(laid_out(spec)) == sums(laid_out(P(), devices=1, model=1)) == {"a": array_sum(NUMBERS)}
    )


def test_a_split_array_is_not_gathered_for_its_sum():
    state = laid_out(P("data", "model"))
    program = (
        _adder(NamedSharding(state["a"].sharding.mesh, P())).lower([state["a"]]).compile().as_text()
    )
    assert "all-reduce" in program
    assert "all-gather" not in program


def test_every_flipped_bit_and_rows_that_changed_places_give_another_sum():
    numbers = NUMBERS[:4, :2].copy()
    found = [sums(laid_out(P("data"), 4, 1, numbers))["a"]]
    found.append(sums(laid_out(P("data"), 4, 1, numbers[[2, 1, 0, 3]]))["a"])
    for bit in range(numbers.nbytes * 8):
        octets = np.frombuffer(numbers.tobytes(), np.uint8).copy()
        octets[bit // 8] ^= 1 << (bit % 8)
        found.append(sums({"a": jnp.asarray(octets.view(np.float32).reshape(4, 2))})["a"])
    assert len(set(found)) == len(found) == 2 + 256


@pytest.mark.parametrize("change", ["signs", "swapped", "zeroed", "moved"])
def test_changes_of_many_numbers_at_once_give_another_sum(change):
    numbers = np.random.default_rng(1).standard_normal(2**18).astype(np.float32)
    other = numbers.copy()
    half = len(numbers) // 2
    if change == "signs":
        other *= -1
    elif change == "swapped":  # at a distance that is a power of two
        other[:half], other[half:] = numbers[half:], numbers[:half]
    elif change == "zeroed":
        other[4096:8192] = 0
    else:
        other[1:] = numbers[:-1]
    assert array_sum(numbers) != array_sum(other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_devices_and_tools_compute_the_same_sum_for_every_dtype(dtype):
    one, other = jnp.arange(6).reshape(3, 2).astype(dtype), jnp.zeros((3, 2), dtype)
    assert sums({"a": one}) == {"a": array_sum(np.asarray(one))} != sums({"a": other})


@given(st.integers(0, 2 * AT_ONCE + 5), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_devices_and_tools_compute_the_same_sum_for_every_size(size, seed):
    numbers = np.random.default_rng(seed).integers(0, 2**32, size, np.uint32)
    assert sums({"a": jnp.asarray(numbers)}) == {"a": array_sum(numbers)}


def test_random_keys_single_numbers_and_empty_arrays_have_sums():
    assert sums({"k": jax.random.key(3)}) != sums({"k": jax.random.key(4)})
    assert sums({"n": jnp.int32(3)}) != sums({"n": jnp.int32(4)})
    assert sums({"e": jnp.zeros((0, 3))}) == {"e": 0}
