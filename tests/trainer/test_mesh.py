"""Which rows a host makes, and that they arrive where the sharding wants them."""

import jax
import numpy as np

from trainer.inputs import batch_struct
from trainer.mesh import Placement
from trainer.steps import has_convolution


def test_one_host_makes_all_rows_for_any_number_of_devices():
    assert Placement.of(jax.devices()).hosts(12).rows == (range(12),)
    assert Placement.of(jax.devices()[:1]).hosts(7).rows == (range(7),)
    assert Placement.of(jax.devices()[:2]).local_devices == 2


def test_rows_land_on_devices_in_order():
    placement = Placement.of(jax.devices())
    host = {"x": np.arange(8)[:, None].astype(np.float32)}
    struct = placement.global_struct(batch_struct(host), 8)
    placed = placement.place(host, struct)["x"]
    assert placed.shape == (8, 1)
    assert [shard.data[:, 0].tolist() for shard in placed.addressable_shards] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    stacked = {"x": np.arange(16).reshape(2, 8, 1).astype(np.float32)}
    struct = placement.global_struct(batch_struct(host), 8, k=2)
    placed = placement.place(stacked, struct)["x"]
    assert placed.addressable_shards[1].data[:, :, 0].tolist() == [[2, 3], [10, 11]]


def test_a_convolution_is_found_inside_calls_and_branches():
    kernel = np.ones((3, 1, 1), np.float32)

    def convolve(x):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))

    def hidden(x):
        return jax.lax.cond(x.sum() > 0, jax.jit(convolve), lambda x: x, x)

    x = np.ones((1, 4, 1), np.float32)
    assert has_convolution(jax.make_jaxpr(convolve)(x))
    assert has_convolution(jax.make_jaxpr(hidden)(x))
    assert not has_convolution(jax.make_jaxpr(lambda x: x @ x.T)(np.ones((2, 2))))
