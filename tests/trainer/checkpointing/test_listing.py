"""Which checkpoints there are, as Orbax sees them; the page of one: what it says, and that changes are noticed."""

import json
import os
import random
import shutil
from dataclasses import replace

import jax
import orbax.checkpoint as ocp
import pytest
from fake_gcs.server import Status

from pipeline.errors import CheckpointError, StorageError
from pipeline.shards.typed_json import sealed
from pipeline.storage.local import LocalStorage
from pipeline.storage.schemes import open_storage
from trainer.checkpointing.contents import changes, contents_path, read_contents
from trainer.checkpointing.listing import (
    checkpoint_bytes,
    checkpoints_directory,
    finished_steps,
    kinds,
)
from trainer.checkpointing.manager import CheckpointManager
from trainer.checkpointing.orbax_paths import orbax_path


@pytest.mark.parametrize("place", ["a disk", "bucket", "s3_bucket"])
def test_finished_steps_are_those_that_orbax_finds(place, request, config, save, tmp_path):
    workdir = (
        str(tmp_path / "run") if place == "a disk" else request.getfixturevalue(place) + "/run"
    )
    assert finished_steps(workdir) == []
    assert not [*tmp_path.iterdir()]
    save(replace(config(), workdir=workdir), 2, 10)
    storage, directory = open_storage(workdir), checkpoints_directory(workdir)
    half = "30.orbax-checkpoint-tmp" if place == "a disk" else "30"
    for name in (f"{half}/contents/metadata", "latest/file", "007/file", "note"):
        storage.create(f"{directory}/{name}", b"{}")
    assert finished_steps(workdir) == [2, 10]
    by_orbax = set(ocp.utils.checkpoint_steps(orbax_path(directory))) - {7}
    # which does not know that nothing is renamed there, unless a manager is told
    assert by_orbax == ({2, 10, 30} if place == "s3_bucket" else {2, 10})
    # 64 x 48 float32, which do not compress
    assert checkpoint_bytes(storage, f"{directory}/10") > 12_000


def test_a_checkpoint_left_unfinished_by_a_kill_is_removed_by_the_next_run(config, save, tmp_path):
    left = tmp_path / "run/checkpoints/17.orbax-checkpoint-tmp/state"
    left.mkdir(parents=True)
    save(config(), 20)
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["20"]


@pytest.mark.slow
def test_what_a_kill_leaves_of_a_removal_in_any_order_is_ours(config, save, tmp_path):
    save(config(), 20)
    for order in range(200):
        step = tmp_path / f"{order}/checkpoints/20"
        shutil.copytree(tmp_path / "run/checkpoints/20", step, copy_function=os.link)
        for path in _in_order_of_removal(step, random.Random(order)):
            path.rmdir() if path.is_dir() else path.unlink()
            left = sorted(str(each.relative_to(step)) for each in step.rglob("*"))
            assert kinds(str(tmp_path / f"{order}"))["20"] != "other", left


def _in_order_of_removal(directory, rng):
    """All paths below it, each after those in it, otherwise in any order: as shutil.rmtree goes about it."""
    for path in sorted(directory.iterdir(), key=lambda _: rng.random()):
        if path.is_dir():
            yield from _in_order_of_removal(path, rng)
        yield path


def test_a_partly_removed_checkpoint_in_a_bucket_is_not_listed(bucket, gcs_server, config, save):
    save(replace(config(), workdir=f"{bucket}/run"), 2, 10)
    gcs_server.fail(
        "DELETE .*checkpoints/2/state/".replace("/", "(?:/|%2F)"), Status(403), times=None
    )
    with pytest.raises(StorageError, match="checkpoints/2/state/"):
        orbax_path(f"{bucket}/run/checkpoints/2").rmtree()
    assert finished_steps(f"{bucket}/run") == [10]


def test_a_bucket_that_is_missing_is_an_error(bucket):
    with pytest.raises(StorageError, match="gs://no-such-bucket/run"):
        finished_steps("gs://no-such-bucket/run")


def page_of(settings, step):
    directory = CheckpointManager(settings).directory
    return read_contents(LocalStorage(), directory, step)


def test_a_checkpoint_says_with_what_when_and_where_it_was_made(config, save):
    save(config(seed=5), 10, model=2)
    page = page_of(config(), 10)
    assert page["step"] == 10
    assert page["config"]["seed"] == 5
    assert page["input"] == {"position": 10}
    assert page["mesh"] == {"data": 2, "fsdp": 1, "model": 2, "device": "cpu", "processes": 1}
    packages = {"infeed", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy"}
    packages |= {"opencv-python-headless", "simplejpeg", "pillow"}
    assert page["versions"].keys() == {"python"} | packages
    assert page["versions"]["jax"] == jax.__version__
    assert page["time"].endswith("+00:00")
    assert (
        page["arrays"]["variables/params/w"].items()
        >= {"dtype": "float32", "shape": [64, 48]}.items()
    )


def test_changes_since_a_checkpoint_are_listed(config, save, state_at):
    save(config(seed=5), 10)
    saved = CheckpointManager(config()).restore(10, state_at(devices=2))
    assert saved.changes(config(seed=6).to_json()) == ["seed 5 -> 6", "mesh data 4 -> 2"]
    assert changes({"jax": "0.9"}, {"jax": "0.10"}) == ["jax '0.9' -> '0.10'"]
    assert changes({"names": ["a"]}, {"names": ("a",)}) == []


def test_a_flipped_bit_in_the_contents_of_a_checkpoint_is_detected(tmp_path):
    contents = {"versions": {"infeed": "1"}, "config": {"keys": {"1": "a", "10": 0.1}}}
    data = json.dumps(sealed(contents)).encode()
    file = tmp_path / "7/contents/metadata"
    file.parent.mkdir(parents=True)
    assert str(file) == contents_path(str(tmp_path), 7)
    file.write_bytes(data)
    assert read_contents(LocalStorage(), str(tmp_path), 7)["config"] == {
        "keys": {"1": "a", "10": 0.1}
    }
    for bit in range(0, len(data) * 8, 5):
        octets = bytearray(data)
        octets[bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(octets)
        with pytest.raises(CheckpointError, match="7/contents/metadata(:| is) .*damaged"):
            read_contents(LocalStorage(), str(tmp_path), 7)
