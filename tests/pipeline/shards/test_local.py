"""What only a disk does: temporary files, and the system's words for its errors. The rest is in test_storage.py."""

import pytest

from pipeline.shards.errors import StorageError
from pipeline.shards.local import LocalStorage


@pytest.fixture
def storage():
    return LocalStorage()


@pytest.mark.parametrize("call", [LocalStorage.stat, LocalStorage.read, LocalStorage.open])
def test_a_missing_file_is_named(storage, tmp_path, call):
    with pytest.raises(StorageError, match=r"cannot \w+ .*/nothing: No such file"):
        call(storage, f"{tmp_path}/nothing")


def test_a_directory_that_cannot_be_written_is_named(storage, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write .*/file/x: "), storage.publish(f"{tmp_path}/file/x"):
        pass


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
