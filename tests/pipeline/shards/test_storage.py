"""The local disk behind the Storage interface."""

import pytest

from pipeline.shards.errors import OptionError, StorageError
from pipeline.shards.local import LocalStorage
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join


@pytest.fixture
def storage():
    return LocalStorage()


def test_the_local_disk_is_a_storage(storage):
    assert isinstance(storage, Storage)


def test_a_file_is_there_only_after_the_block_and_whole(storage, tmp_path):
    path = f"{tmp_path}/deep/down/file"
    with storage.publish(path) as sink:
        sink.write(b"one")
        sink.write(b"two")
        assert not storage.exists(path)
    assert storage.read(path) == b"onetwo"
    assert [p.name for p in (tmp_path / "deep/down").iterdir()] == ["file"]


def test_an_exception_in_the_block_leaves_the_old_file_and_no_trace(storage, tmp_path):
    path = f"{tmp_path}/file"
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(RuntimeError), storage.publish(path) as sink:
        sink.write(b"half")
        raise RuntimeError
    assert storage.read(path) == b"old"
    assert list(storage.list(str(tmp_path))) == ["file"]


def test_of_two_creators_the_first_wins(storage, tmp_path):
    assert storage.create(f"{tmp_path}/a/claim", b"first")
    assert not storage.create(f"{tmp_path}/a/claim", b"second")
    assert storage.read(f"{tmp_path}/a/claim") == b"first"
    assert list(storage.list(f"{tmp_path}/a")) == ["claim"]


def test_ranges_come_in_order_from_several_files(storage, tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"abcdef")
    ranges = [(f"{tmp_path}/a", 8, 2), (f"{tmp_path}/b", 0, 3), (f"{tmp_path}/a", 0, 1), (f"{tmp_path}/a", 5, 0)]
    assert list(storage.read_ranges(ranges)) == [b"89", b"abc", b"0", b""]


def test_a_range_past_the_end_is_an_error_and_never_short_data(storage, tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with pytest.raises(StorageError, match=r"/a ends at byte 10, but bytes 8\.\.12 are needed"):
        list(storage.read_ranges([(f"{tmp_path}/a", 8, 4)]))


@pytest.mark.parametrize("call", [LocalStorage.stat, LocalStorage.read, LocalStorage.open])
def test_a_missing_file_is_named(storage, tmp_path, call):
    with pytest.raises(StorageError, match=r"cannot \w+ .*/nothing: No such file"):
        call(storage, f"{tmp_path}/nothing")


def test_a_directory_that_cannot_be_written_is_named(storage, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write .*/file/x: "), storage.publish(f"{tmp_path}/file/x"):
        pass


def test_deleting_twice_is_no_error(storage, tmp_path):
    (tmp_path / "a").write_bytes(b"")
    storage.delete(f"{tmp_path}/a")
    storage.delete(f"{tmp_path}/a")
    assert storage.list(str(tmp_path)) == storage.list(f"{tmp_path}/nowhere") == {}


def test_listing_gives_files_with_their_sizes_and_directories_apart(storage, tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_bytes(name.encode() * 5)
        (tmp_path / f"dir {name}").mkdir()
    assert list(storage.list(str(tmp_path)).items()) == [("a", Stat(5)), ("b", Stat(5))]
    assert list(storage.subdirectories(str(tmp_path))) == ["dir a", "dir b"]
    assert list(storage.subdirectories(f"{tmp_path}/nowhere")) == []


def test_sweeping_removes_the_traces_of_killed_writers_of_these_names_alone(storage, tmp_path):
    ours, other = ".train-00000-of-00001.123.0a1b2c3d.tmp", ".foreign.123.0a1b2c3d.tmp"
    for name in (ours, other, ".train-00000-of-00001", "train-00000-of-00001", ".train-00000-of-00001.tmp"):
        (tmp_path / name).write_bytes(b"")
    storage.sweep(str(tmp_path), {"train-00000-of-00001"})
    storage.sweep(f"{tmp_path}/nowhere", {"x"})
    assert sorted(storage.list(str(tmp_path))) == sorted(
        [other, ".train-00000-of-00001", "train-00000-of-00001", ".train-00000-of-00001.tmp"]
    )


def test_the_name_of_a_file_being_written_is_one_that_sweeping_knows(storage, tmp_path):
    with pytest.raises(StorageError, match="cannot write"), storage.publish(f"{tmp_path}/shard"):
        assert len(storage.list(str(tmp_path))) == 1
        storage.sweep(str(tmp_path), {"shard"})
        assert not storage.list(str(tmp_path))


def test_an_unknown_scheme_is_refused():
    with pytest.raises(OptionError, match=r"s3:// is not supported"):
        open_storage("s3://bucket/data")


def test_joining():
    assert join("/a/b/", "c") == join("/a/b", "c") == "/a/b/c"
    assert join("/", "c") == "/c"
