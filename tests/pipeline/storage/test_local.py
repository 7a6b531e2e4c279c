"""What only a disk does: temporary files, and the system's words for its errors. The rest is in test_storage.py."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.storage import local
from pipeline.storage.local import LocalStorage


@pytest.fixture
def storage():
    return LocalStorage()


def test_the_size_of_a_directory_or_pipe_is_an_error(storage, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StorageError, match=f"{path} is a directory or a device, not a file"):
            storage.stat(str(path))


def test_a_name_that_no_disk_can_have_is_named(storage, tmp_path):
    with pytest.raises(StorageError, match=r"cannot find .*/xxx\S+: File name too long"):
        storage.exists(f"{tmp_path}/{'x' * 300}")


@pytest.mark.timeout(20)
def test_an_update_of_a_pipe_is_refused(storage, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        StorageError, match=f"{tmp_path}/pipe is a directory or a device, not a file"
    ):
        storage.update(f"{tmp_path}/pipe", lambda old: old or b"")


def test_opening_a_pipe_or_directory_fails_immediately(tmp_path):
    """In a process of its own: who waits for a writer of a pipe can only be killed."""
    os.mkfifo(tmp_path / "pipe")
    code = """
import sys
from pipeline.errors import StorageError
from pipeline.storage.local import LocalStorage
for path in sys.argv[1:]:
    storage = LocalStorage()
    for call in (storage.read, storage.open):
        try:
            call(path)
        except StorageError as e:
            print(e)"""
    paths = [str(tmp_path / "pipe"), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.splitlines() == [
        f"{p} is a directory or a device, not a file." for p in paths for _ in range(2)
    ]


def test_a_directory_that_cannot_be_written_is_named(storage, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(StorageError, match=r"cannot write .*/file/x: "),
        storage.publish(f"{tmp_path}/file/x"),
    ):
        pass


def test_sweeping_leaves_a_file_alone_that_somebody_is_writing(storage, tmp_path):
    with storage.publish(f"{tmp_path}/train-00000-of-00001") as sink:
        sink.write(b"first half, ")
        storage.sweep(str(tmp_path), ["train-*-of-00001"])
        sink.write(b"second half")
    assert storage.read(f"{tmp_path}/train-00000-of-00001") == b"first half, second half"


def test_a_file_that_is_swept_before_its_writer_could_lock_it_is_written_under_another_name(
    storage, tmp_path, monkeypatch
):
    lock, swept = local._lock, []

    def late(file):
        if not swept:
            swept.append(Path(file.name).unlink())
        return lock(file)

    monkeypatch.setattr(local, "_lock", late)
    with storage.publish(f"{tmp_path}/x") as sink:
        sink.write(b"whole")
    assert (swept, storage.read(f"{tmp_path}/x"), list(storage.list(str(tmp_path)))) == (
        [None],
        b"whole",
        ["x"],
    )


def test_sweeping_removes_the_traces_of_killed_writers_of_these_names_alone(storage, tmp_path):
    ours, other = ".train-00000-of-00001.123.0a1b2c3d.tmp", ".foreign.123.0a1b2c3d.tmp"
    for name in (
        ours,
        other,
        ".train-00000-of-00001",
        "train-00000-of-00001",
        ".train-00000-of-00001.tmp",
    ):
        (tmp_path / name).write_bytes(b"")
    storage.sweep(str(tmp_path), ["train-*-of-00001"])
    storage.sweep(f"{tmp_path}/nowhere", ["x"])
    assert sorted(storage.list(str(tmp_path))) == sorted(
        [other, ".train-00000-of-00001", "train-00000-of-00001", ".train-00000-of-00001.tmp"]
    )


def test_the_file_of_a_killed_writer_is_swept(storage, tmp_path):
    code = f"""
import os
from pipeline.storage.local import LocalStorage
with LocalStorage().publish({f"{tmp_path}/shard"!r}) as sink:
    os.kill(os.getpid(), 9)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(storage.list(str(tmp_path))) == 1
    storage.sweep(str(tmp_path), ["shard"])
    assert not storage.list(str(tmp_path))


def test_an_update_that_another_process_holds_up_is_an_error_within_its_bound(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("pipeline.storage.local.LOCK_SECONDS", 0.2)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(
        StorageError, match=r"cannot update .*/x: another process has held the lock for 0\.2 s"
    ):
        LocalStorage().update(str(tmp_path / "x"), lambda _: b"mine")
    os.close(fd)
    LocalStorage().update(str(tmp_path / "x"), lambda _: b"mine")


def test_pipes_and_broken_links_are_listed_as_empty_files(storage, tmp_path):
    """Left out, it would be lost without a word: it cannot be read, but its name stands there."""
    (tmp_path / "to a file").symlink_to("file")
    (tmp_path / "to a folder").symlink_to("folder")
    (tmp_path / "to nowhere").symlink_to("nowhere")
    (tmp_path / "to itself").symlink_to("to itself")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    files, folders = storage.entries(str(tmp_path))
    sizes = {"file": 5, "pipe": 0, "to a file": 5, "to itself": 0, "to nowhere": 0}
    assert ({name: stat.bytes for name, stat in files.items()}, folders) == (
        sizes,
        ["folder", "to a folder"],
    )


def test_a_file_that_vanishes_while_a_folder_is_listed_is_not_in_the_list(
    storage, tmp_path, monkeypatch
):
    for name in ("going", "staying"):
        (tmp_path / name).write_bytes(b"1")
    entries = local._entries(str(tmp_path))
    (tmp_path / "going").unlink()
    monkeypatch.setattr(local, "_entries", lambda _: entries)
    assert list(storage.list(str(tmp_path))) == ["staying"]


def test_a_link_is_neither_followed_nor_replaced(storage, tmp_path):
    (tmp_path / "target").write_bytes(b"mine")
    for link, target in (("link", "target"), ("nowhere", "nothing")):
        (tmp_path / link).symlink_to(tmp_path / target)
        path = str(tmp_path / link)
        with pytest.raises(
            StorageError,
            match=f"{path} is a link, which is not replaced. Remove it, or give another",
        ):
            storage.update(path, lambda _: b"ours")
        assert not storage.create(path, b"ours")
        assert (tmp_path / link).is_symlink()
        storage.delete(path)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target").read_bytes() == b"mine"
