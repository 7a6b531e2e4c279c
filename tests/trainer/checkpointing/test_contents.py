"""The page of a checkpoint: what it says, and that nothing on it changes unnoticed."""

import json

import jax
import pytest

from pipeline.errors import CheckpointError
from pipeline.shards.typed_json import sealed
from pipeline.storage.local import LocalStorage
from trainer.checkpointing.contents import changes, contents_path, read_contents
from trainer.checkpointing.manager import CheckpointManager


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
    assert page["arrays"]["variables/params/w"].items() >= {"dtype": "float32", "shape": [64, 48]}.items()


def test_changes_since_a_checkpoint_are_listed(config, save, state_at):
    save(config(seed=5), 10)
    saved = CheckpointManager(config()).restore(10, state_at(devices=2))
    assert saved.changes(config(seed=6).to_json()) == ["seed 5 -> 6", "data 4 -> 2"]
    assert changes({"jax": "0.9"}, {"jax": "0.10"}) == ["jax '0.9' -> '0.10'"]
    assert changes({"names": ["a"]}, {"names": ("a",)}) == []


def test_a_flipped_bit_in_the_contents_of_a_checkpoint_is_detected(tmp_path):
    contents = {"versions": {"infeed": "1"}, "config": {"keys": {"1": "a", "10": 0.1}}}
    data = json.dumps(sealed(contents)).encode()
    file = tmp_path / "7/contents/metadata"
    file.parent.mkdir(parents=True)
    assert str(file) == contents_path(str(tmp_path), 7)
    file.write_bytes(data)
    assert read_contents(LocalStorage(), str(tmp_path), 7)["config"] == {"keys": {"1": "a", "10": 0.1}}
    for bit in range(0, len(data) * 8, 5):
        octets = bytearray(data)
        octets[bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(octets)
        with pytest.raises(CheckpointError, match="7/contents/metadata(:| is) .*damaged"):
            read_contents(LocalStorage(), str(tmp_path), 7)
