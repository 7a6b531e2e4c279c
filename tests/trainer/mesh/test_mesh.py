"""Which rows a host makes, and that they arrive where the sharding wants them."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pipeline.errors import BatchSizeError, OptionError
from trainer.config import axis_sizes
from trainer.mesh.batch_spec import batch_struct
from trainer.mesh.placement import Placement


def test_one_host_makes_all_rows_for_any_number_of_devices():
    assert Placement.of(jax.devices()).hosts(12).rows == (range(12),)
    assert Placement.of(jax.devices()[:1]).hosts(7).rows == (range(7),)
    assert Placement.of(jax.devices()[:2]).replicas == 2


def test_rows_land_on_devices_in_order():
    placement = Placement.of(jax.devices())
    host = {"x": np.arange(8)[:, None].astype(np.float32)}
    struct = placement.global_struct(batch_struct(host), 8)
    placed = placement.place(host, struct)["x"]
    assert placed.shape == (8, 1)
    assert [shard.data[:, 0].tolist() for shard in placed.addressable_shards] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    stacked = {"x": np.arange(16).reshape(2, 8, 1).astype(np.float32)}
    struct = placement.global_struct(batch_struct(host), 8, k=2)
    placed = placement.place(stacked, struct)["x"]
    assert placed.addressable_shards[1].data[:, :, 0].tolist() == [[2, 3], [10, 11]]


@pytest.mark.parametrize("splitting", ["data", "fsdp"])
def test_rows_are_split_over_data_and_fsdp_and_copied_along_model(splitting):
    sizes = {"data": 1, "fsdp": 1} | {splitting: 2, "model": 2}
    placement = Placement.of(jax.devices(), sizes)
    assert dict(placement.mesh.shape) == sizes
    hosts = placement.hosts(6)
    assert (hosts.devices, hosts.rows) == (2, (range(6),))
    host = {"x": np.arange(6)[:, None].astype(np.float32)}
    placed = placement.place(host, placement.global_struct(batch_struct(host), 6))["x"]
    parts = [shard.data[:, 0].tolist() for shard in placed.addressable_shards]
    assert parts == [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2


def test_a_batch_need_only_be_divisible_by_the_data_axis():
    with pytest.raises(
        BatchSizeError, match=r"global_batch=7 is not divisible by 2 devices.*: 6, 8\."
    ):
        Placement.of(jax.devices(), {"model": 2}).hosts(7)


def test_devices_that_are_given_keep_their_order():
    devices = [jax.devices()[i] for i in (2, 0, 3, 1)]
    assert Placement.of(devices, {"model": 2}).mesh.devices.flatten().tolist() == devices


@pytest.mark.parametrize(
    ("sizes", "text"),
    [({"model": 3}, r"Allowed: 1, 2, 4\."), ({"data": 1, "fsdp": 2}, r"Allowed: 4\.")],
)
def test_sizes_that_the_devices_cannot_have_are_refused(sizes, text):
    with pytest.raises(OptionError, match=text):
        Placement.of(jax.devices(), sizes)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (None, {}),
        ("data=2,fsdp=4", {"data": 2, "fsdp": 4}),
        ("fsdp=4,model=2", {"fsdp": 4, "model": 2}),
    ],
)
def test_sizes_are_read_from_flags(given, sizes):
    assert axis_sizes(given) == sizes


@pytest.mark.parametrize("mesh", ["8", "fsdp=", "fsdp=0", "tensor=2", "fsdp=2,fsdp=4", "fsdp=2;"])
def test_a_mesh_of_another_form_is_refused(mesh, config):
    with pytest.raises(
        OptionError, match=r"mesh='.*' is not of the form data=2,fsdp=4: give data, fsdp and model"
    ):
        config(mesh=mesh)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P("modal"), r"the partition .* of dense/kernel names 'modal', not data, fsdp or model\."),
        (
            P("model"),
            r"dense/kernel has the shape \[5, 8\].* splits into 2 parts: 5 is not divisible by 2",
        ),
        (
            P(None, ("data", "model"), "model"),
            r"the shape \[5, 8\]; its partition .* has more dimensions",
        ),
    ],
)
def test_a_partition_that_does_not_fit_names_the_array(spec, text):
    with pytest.raises(OptionError, match=text):
        Placement.of(jax.devices(), {"model": 2}).sharding("dense/kernel", (5, 8), spec)
