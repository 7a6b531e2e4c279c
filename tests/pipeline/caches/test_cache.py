"""Records from a cache: the same as from their source, which is read once."""

import itertools
import re
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from host_batches import assert_same, taken

from pipeline import machine
from pipeline.datasets import cached, eval_dataset, mixture, open_dataset, train_dataset
from pipeline.errors import CorruptRecordError, OptionError
from pipeline.hosts import Hosts
from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.sources.concatenated import Part, concatenated
from pipeline.sources.records import fetch, intact, weighed

OPS = (DecodeJpeg("image/encoded", shape=(8, 8, 1)), RandomShift(pixels=2))
KEYS = ("image", "image/class/label", "image/weight")


@pytest.fixture(params=["ram", "disk"])
def cache(request, tmp_path):
    return "ram" if request.param == "ram" else tmp_path / "cache"


def options(cache):
    return {"global_batch": 8, "ops": OPS, "keys": KEYS, "cache": cache}


@pytest.mark.parametrize("ahead", [1, 10**6])
def test_an_evaluation_reads_its_source_once_and_gives_the_same_batches(
    images, cache, source_reads, ahead
):
    plain = taken(eval_dataset(images, **options(None)), count=10)
    source = eval_dataset(images, read_ahead_bytes=ahead, **options(cache))
    assert_same(taken(source, count=10), plain)
    source_reads.clear()
    for _ in range(2):
        assert_same(taken(source, count=10), plain)
    assert source_reads == []
    assert (
        sum(int(b["_crc"].sum(dtype=np.uint64)) for b in plain) % 2**32 == source.info.expected_crc
    )


@pytest.mark.parametrize(("count", "ahead"), [(1, 10**6), (2, 1)])
def test_training_from_a_full_cache_reads_nothing_from_its_source(
    images, cache, source_reads, count, ahead
):
    for host in range(count):
        order = {
            "hosts": Hosts(host, count),
            "block_records": 4,
            "window_records": 3,
            "read_ahead_bytes": ahead,
        }
        plain = taken(train_dataset(images, **order, **options(None)), count=20)
        source_reads.clear()
        source = train_dataset(images, **order, **options(cache))
        assert_same(taken(source, count=20), plain)  # 4 epochs
        assert sum(size for _, _, size in source_reads) <= open_dataset(images).info.num_bytes
        source_reads.clear()
        assert_same(taken(source, count=20), plain)
        assert source_reads == []
        state = source.state(source.advance(source.start, 7))
        # with or without is one order
        assert train_dataset(images, **order, **options(None)).restore(state)


def test_only_records_missing_from_the_cache_are_read(numbers_of, cache, source_reads):
    records = cached(open_dataset(numbers_of(5, 0, 3)), cache)
    first = fetch(records, np.array([6, 1, 1, 3]))
    source_reads.clear()
    groups = [np.array([3, 0, 6]), np.array([], np.int64), np.array([7, 1, 0])]
    expected = [fetch(records.source, ids) for ids in groups]
    source_reads.clear()
    assert list(records.read(weighed(records, groups), 0)) == expected
    # 0, and 7
    assert [place[0][-14:] for place in source_reads] == ["00000-of-00003", "00002-of-00003"]
    assert fetch(records, np.array([6, 1, 1, 3])) == first


def test_a_damaged_record_is_never_kept(images, cache, tmp_path):
    directory = shutil.copytree(images, tmp_path / "damaged")
    shard = directory / "validation-00001-of-00002"
    whole_shard = shard.read_bytes()
    shard.write_bytes(whole_shard[:-9] + bytes([whole_shard[-9] ^ 1]) + whole_shard[-8:])
    source = eval_dataset(str(directory), **options(cache))
    for _ in range(2):
        with pytest.raises(
            CorruptRecordError, match=r"validation-00001-of-00002, record 12 at byte \d+: crc32c"
        ):
            taken(source, count=10)
    shard.write_bytes(whole_shard)
    assert_same(taken(source, count=10), taken(eval_dataset(images, **options(None)), count=10))


def test_cached_records_can_be_concatenated_mixed_and_sliced(numbers_of, cache, source_reads):
    one, two = (open_dataset(numbers_of(*sizes)) for sizes in [(8,), (13, 11)])
    ours = concatenated([Part(cached(one, cache)), Part(cached(two, cache))])
    ids = np.arange(32)[::-1]
    expected = fetch(concatenated([Part(one), Part(two)]), ids)
    assert (fetch(ours, ids), fetch(open_dataset(ours, "[10:]"), ids[10:])) == (
        expected,
        expected[:22],
    )
    plain = train_dataset(mixture([one, two], [1, 3]), global_batch=8)
    for source in (
        train_dataset(mixture([one, two], [1, 3]), global_batch=8, cache=cache),
        train_dataset(mixture([part.records for part in ours.parts], [1, 3]), global_batch=8),
    ):
        assert_same(taken(source, count=12), taken(plain, count=12))
        source_reads.clear()
        taken(source, count=12)
        assert source_reads == []


def test_threads_share_one_cache(images, cache):
    records = cached(open_dataset(images, "train"), cache)
    ids = np.arange(records.info.num_records)
    expected = fetch(records.source, ids)
    found = {}

    def read(seed):
        order = np.random.default_rng(seed).permutation(ids)
        read = records.read(weighed(records, order.reshape(8, 5)), 500)
        found[seed] = list(zip(order, itertools.chain(*read), strict=True))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pairs in found.values():
        assert all(record == expected[i] for i, record in pairs)
    assert sorted(found) == [0, 1, 2, 3]
    assert records.store.complete


def test_a_cache_logs_its_maximum_size_before_reading(images, cache, caplog, source_reads):
    caplog.set_level("INFO", "pipeline")
    train_dataset(images, **options(cache))
    where = "RAM" if cache == "ram" else f"{cache}/[0-9a-f]{{32}}, which has 0 B"
    assert source_reads == []
    caplog_lines = [line for line in caplog.messages if "caching" in line]
    assert len(caplog_lines) == 1
    assert re.search(rf"split 'train': caching up to \d+(\.\d+)? KB in {where}$", caplog_lines[0])


def test_what_does_not_fit_into_memory_is_refused_before_anything_is_read(
    images, monkeypatch, source_reads
):
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 10_000)
    with pytest.raises(
        OptionError,
        match=r"cache='ram' needs \S+ KB for .*'train'; 9 KB of memory are available\. C",
    ):
        train_dataset(images, **options("ram"))
    assert source_reads == []
    eval_dataset(images, hosts=Hosts(0, 8), **options("ram"))  # an eighth of the records: it fits


def test_records_larger_than_announced_fill_only_the_free_memory(
    images, monkeypatch, caplog, source_reads
):
    records = open_dataset(images, "train")
    # as of a compressed file
    monkeypatch.setattr(records, "info", replace(records.info, num_bytes=2_000))
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 8_000)
    source = cached(records, "ram")
    ids = np.arange(40)
    plain = fetch(records, ids)
    assert fetch(source, ids) == fetch(source, ids) == plain
    kept = source.store.holds(ids)
    assert 0 < kept.sum() < 40
    assert sum(len(intact(plain[i])[0]) for i in ids[kept]) < 7_200
    assert len([line for line in caplog.messages if "the RAM cache is full" in line]) == 1


@pytest.mark.parametrize("unknown", ["RAM", "disk", "gs://bucket/cache"])
def test_an_unknown_cache_is_refused(images, unknown):
    with pytest.raises(
        OptionError, match=rf"cache='{unknown}' is not known\. Known: 'ram'; a directory on a local"
    ):
        train_dataset(images, **options(unknown))
