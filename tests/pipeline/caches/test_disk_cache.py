"""A cache on disk after whatever can happen to it: no lock, no repair, and never a wrong record."""

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from damage import flip

from pipeline.errors import OptionError, StorageError
from pipeline.inputs import caches as disk_cache
from pipeline.inputs.caches import cached
from pipeline.shards.frames import FRAME_BYTES, HEADER_BYTES
from pipeline.sources.open_dataset import open_dataset
from pipeline.sources.records import fetch, weighed

N = 40
IDS = np.arange(N)
FILL = """
import sys, time
import numpy as np
from pipeline.inputs.caches import cached
from pipeline.sources.records import weighed
from pipeline.sources.open_dataset import open_dataset

directory, cache, seed, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
records = cached(open_dataset(directory), cache)
order = np.random.default_rng(seed).permutation(records.info.num_records)
for found in records.read(weighed(records, order.reshape(-1, 1)), 0):
    print(len(found), flush=True)
    time.sleep(pause)
"""


@pytest.fixture
def source(images):
    return open_dataset(images)


def files(cache, source) -> tuple[Path, Path]:
    return cache / source.info.fingerprint / "records", cache / source.info.fingerprint / "present"


def filled(source, cache, ids=IDS):
    fetch(cached(source, cache), ids)


def fill(images, cache, seed, pause):
    command = [sys.executable, "-c", FILL, images, str(cache), str(seed), str(pause)]
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root}
    )


def test_a_process_reuses_the_cache_of_a_killed_one(images, source, tmp_path):
    process = fill(images, tmp_path, seed=1, pause=0.05)
    try:
        for _ in range(10):
            process.stdout.readline()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    records = cached(source, tmp_path)
    there = records.store.holds(IDS)
    assert 10 <= there.sum() < N
    assert fetch(records, IDS) == fetch(source, IDS)
    assert records.store.complete


def test_two_processes_fill_one_cache_at_once(images, source, tmp_path, source_reads):
    processes = [fill(images, tmp_path, seed, 0.01) for seed in (1, 2)]
    try:
        assert [process.wait(120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.stdout.close()
    records = cached(source, tmp_path)
    found = fetch(records, IDS)
    assert source_reads == []
    assert found == fetch(source, IDS)


@pytest.mark.parametrize("place", range(0, 20_000, 3989))
def test_a_cached_record_with_a_flipped_bit_is_read_again_and_repaired(
    source, tmp_path, source_reads, place
):
    filled(source, tmp_path)
    path, _ = files(tmp_path, source)
    flip(path, place % path.stat().st_size, 1 << place % 8)
    expected = fetch(source, IDS)
    assert fetch(cached(source, tmp_path), IDS) == expected
    source_reads.clear()
    assert fetch(cached(source, tmp_path), IDS) == expected
    assert source_reads == []


@pytest.mark.parametrize(
    "lost", ["hole", "half a record", "truncated", "removed", "marks", "all marks set"]
)
def test_lost_parts_of_a_disk_cache_are_read_again(source, tmp_path, lost, source_reads):
    # as after a crash of the machine, which may write one file and not the other
    if lost == "all marks set":
        filled(source, tmp_path, IDS[::3])
        files(tmp_path, source)[1].write_bytes(b"\1" * N)
    else:
        filled(source, tmp_path)
    path, marks = files(tmp_path, source)
    size = path.stat().st_size
    if lost in ("hole", "half a record"):
        begin, end = (4096, 12288) if lost == "hole" else (5_100, 5_200)
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(end - begin))
    elif lost == "truncated":
        os.truncate(path, size // 2 + 7)
    elif lost == "removed":
        path.unlink()
    elif lost == "marks":
        os.truncate(marks, 3)
    records = cached(source, tmp_path)
    expected = fetch(source, IDS)
    source_reads.clear()
    for ahead in (0, 10**6):
        (found,) = records.read(weighed(records, [IDS]), ahead)
        assert found == expected
    assert source_reads
    assert (path.stat().st_size, marks.stat().st_size) == (size, N)


def test_different_data_never_share_a_cache(source, images, tmp_path, source_reads):
    filled(source, tmp_path)
    validation, copy = (
        open_dataset(images, "validation"),
        shutil.copytree(images, tmp_path / "copy"),
    )
    assert fetch(cached(validation, tmp_path), IDS[:21]) == fetch(validation, IDS[:21])
    names = {path.name for path in tmp_path.iterdir()} - {"copy"}
    assert names == {source.info.fingerprint, validation.info.fingerprint}
    source_reads.clear()
    fetch(cached(open_dataset(str(copy)), tmp_path), IDS)  # the same data at another place
    assert source_reads == []


def test_neighbours_come_in_one_large_read(source, tmp_path, requested):
    filled(source, tmp_path, IDS[::-1])
    requested.clear()
    records = cached(source, tmp_path)
    groups = np.array_split(np.random.default_rng(0).permutation(IDS), 5)
    assert list(records.read(weighed(records, groups), 10**6)) == [
        fetch(source, ids) for ids in groups
    ]
    # from the first payload to the end of the last one
    inner = (HEADER_BYTES, source.info.num_bytes - FRAME_BYTES)
    assert [place[1:] for place in requested if place[0].endswith("/records")] == [inner]


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    source, tmp_path, monkeypatch
):
    free = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(disk_cache.shutil, "disk_usage", lambda _: free)
    with pytest.raises(
        OptionError, match=r"needs 20 KB more for .*'train'; 10 KB are free on that disk\. Remove"
    ):
        cached(source, tmp_path)
    monkeypatch.undo()
    filled(source, tmp_path, IDS[:25])
    monkeypatch.setattr(disk_cache.shutil, "disk_usage", lambda _: free)
    cached(source, tmp_path)  # the rest fits


def test_a_full_disk_stops_the_caching_but_not_the_reading(source, tmp_path, monkeypatch, caplog):
    records = cached(source, tmp_path)
    fetch(records, IDS[:5])

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_cache.os, "pwritev", full)
    for _ in range(2):
        assert fetch(records, IDS) == fetch(source, IDS)
    assert records.store.holds(IDS).sum() == 5
    assert [line.partition(" in ")[0][-22:] for line in caplog.messages] == [
        "nothing more is cached"
    ]
    assert "No space left on device" in caplog.text


def test_a_directory_that_cannot_be_written_is_named(source, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        StorageError, match=rf"cannot keep a cache in {tmp_path}/file/\w+: Not a directory\. Give a"
    ):
        cached(source, tmp_path / "file")


def test_a_disk_cache_refuses_records_without_checksums(source, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "info", replace(source.info, crcs=None))
    with pytest.raises(
        OptionError, match=r"needs lengths and checksums .* in advance, which .*cache='ram'"
    ):
        cached(source, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_cache_leaves_no_file_open(source, tmp_path):
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        filled(source, tmp_path)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("there", ["a larger file", "a link", "a named pipe"])
def test_what_is_not_a_cache_is_refused(source, tmp_path, there):
    path, _ = files(tmp_path / "cache", source)
    path.parent.mkdir(parents=True)
    (tmp_path / "mine").write_bytes(b"mine" * 10**5)
    if there == "a larger file":
        shutil.copy(tmp_path / "mine", path)
    elif there == "a link":
        (tmp_path / "mine").write_bytes(b"mine")
        path.symlink_to(tmp_path / "mine")
    else:
        os.mkfifo(path)
    with pytest.raises(StorageError, match="cannot keep a cache"):
        cached(source, tmp_path / "cache")
    assert (tmp_path / "mine").read_bytes() == b"mine" * (1 if there == "a link" else 10**5)
    assert there != "a larger file" or path.stat().st_size == 4 * 10**5
