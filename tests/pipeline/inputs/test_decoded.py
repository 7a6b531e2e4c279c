"""Batches of an evaluation that are kept as they were decoded."""

import itertools
import shutil

import jax
import numpy as np
import pytest
from host_batches import assert_same, taken

from pipeline import sizes
from pipeline.datasets import Position, eval_dataset
from pipeline.errors import CorruptRecordError, OptionError
from pipeline.hosts import Hosts
from pipeline.inputs import decoded
from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.storage.local import LocalStorage
from pipeline.tf_data import dataset_of

OPTIONS = {
    "global_batch": 8,
    "ops": (DecodeJpeg("image/encoded", shape=(8, 8, 1)), RandomShift(pixels=2)),
    "keys": ("image", "image/class/label", "image/weight"),
}


@pytest.fixture
def reads(monkeypatch):
    asked, read_ranges = [], LocalStorage.read_ranges
    monkeypatch.setattr(
        LocalStorage,
        "read_ranges",
        lambda self, ranges: read_ranges(self, (asked.append(place) or place for place in ranges)),
    )
    return asked


@pytest.mark.parametrize("hosts", [Hosts(), Hosts(1, 2), Hosts(0, 2, rows=(range(6, 8), range(0, 1)))], ids=repr)
def test_after_one_pass_a_decoded_cache_delivers_the_same_batches_without_reading(images, reads, hosts):
    plain = taken(eval_dataset(images, hosts=hosts, **OPTIONS))
    source = eval_dataset(images, hosts=hosts, cache="decoded", **OPTIONS)
    reads.clear()
    assert_same(taken(source), plain)
    assert reads
    reads.clear()
    for _ in range(2):
        assert_same(taken(source), plain)
    for step in range(5):
        assert_same(taken(source, source.advance(source.start, step)), plain[step:])
    assert reads == []


def test_a_tf_dataset_fills_and_uses_a_decoded_cache(images, reads):
    plain = taken(eval_dataset(images, **OPTIONS))
    source = eval_dataset(images, cache="decoded", **OPTIONS)
    assert len(dataset_of(source)) == 3
    assert_same(list(dataset_of(source).as_numpy_iterator()), plain)
    reads.clear()
    assert_same(list(dataset_of(source).as_numpy_iterator()), plain)
    assert_same(list(dataset_of(source, Position(0, 8)).as_numpy_iterator()), plain[1:])
    assert_same(taken(source), plain)
    assert reads == []


def test_an_incomplete_pass_is_not_cached(images, tmp_path):
    directory = shutil.copytree(images, tmp_path / "damaged")
    shard = directory / "validation-00001-of-00002"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    source = eval_dataset(str(directory), cache="decoded", read_ahead_bytes=1, **OPTIONS)
    early = source.batches()
    next(early)
    early.close()
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="record 12"):
            taken(source)
    shard.write_bytes(whole)
    plain = taken(eval_dataset(images, **OPTIONS))
    assert_same(taken(source, Position(0, 8)), plain[1:])
    assert_same(taken(source), plain)


def test_a_pass_from_a_position_inside_a_batch_is_not_served_from_the_cache(images):
    plain = taken(eval_dataset(images, **OPTIONS), Position(0, 3))
    source = eval_dataset(images, cache="decoded", **OPTIONS)
    taken(source)
    assert_same(taken(source, Position(0, 3)), plain)


def test_only_one_of_two_concurrent_passes_is_cached(images, reads):
    plain = taken(eval_dataset(images, **OPTIONS))
    source = eval_dataset(images, cache="decoded", **OPTIONS)
    one, two = source.batches(), source.batches()
    pairs = list(zip(one, two, strict=True))
    assert one._seen is None
    assert_same([b for pair in pairs for b in pair], [b for b in plain for _ in range(2)])
    reads.clear()
    assert_same(taken(source), plain)
    assert reads == []


def test_consumers_cannot_modify_cached_batches(images):
    source = eval_dataset(images, cache="decoded", **OPTIONS)
    plain = taken(eval_dataset(images, **OPTIONS))
    for _ in range(2):
        for batch in taken(source):
            with pytest.raises(ValueError, match="read-only"):
                batch["image"][:] = 0
            batch.pop("image/weight")
    donated = jax.jit(lambda batch: jax.tree.map(lambda x: x * 0, batch), donate_argnums=0)
    for batch in taken(source):
        jax.block_until_ready(donated(jax.device_put(batch)))
    assert_same(taken(source), plain)


def test_nested_batches_are_kept_too(images):
    batch = {"image": {"a": np.zeros(3), "b": {"c": np.ones(2)}}, "_mask": np.ones(2)}
    copy = decoded._copied(batch)
    copy["image"]["b"].pop("c")
    assert batch["image"]["b"]["c"].tolist() == [1, 1]
    assert copy["image"]["a"] is batch["image"]["a"]


def test_a_decoded_cache_logs_its_size_and_is_refused_if_memory_is_short(images, monkeypatch, caplog, reads):
    caplog.set_level("INFO", "pipeline")
    eval_dataset(images, cache="decoded", **OPTIONS)
    # uint8 8x8, int32, two float32; _mask, _index and _crc: 88 bytes a row
    (line,) = [text for text in caplog.messages if "caching" in text]
    assert line.endswith("split 'validation': caching 2.11 KB decoded in RAM: 3 batches of 704 B")
    monkeypatch.setattr(sizes, "free_memory_bytes", lambda: 2_300)
    with pytest.raises(OptionError, match=r"cache='decoded' needs 2\.11 KB on this host, 3 batches of 704 B; 2\.07 KB"):
        eval_dataset(images, cache="decoded", **OPTIONS)
    assert reads == []


def test_a_dropped_pass_does_not_prevent_caching_the_next(images):
    source = eval_dataset(images, cache="decoded", **OPTIONS)
    assert len(list(itertools.islice(source.batches(), 1))) == 1
    plain = taken(source)
    assert_same(taken(source), plain)
