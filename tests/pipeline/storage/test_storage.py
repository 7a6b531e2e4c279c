"""The contract of a Storage, with a row for each: a disk, and buckets of real servers of GCS and S3."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.errors import OptionError, StorageError
from pipeline.shards.frames import crc32c
from pipeline.storage.local import LocalStorage
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import (
    MissingError,
    Stat,
    Storage,
    in_parallel,
    join,
    read_file,
    write_file,
)

MEGABYTE = 10**6
LARGE = os.urandom(256 * 1024) * 80  # 20 MiB: several pieces of an upload


@pytest.fixture(params=["disk", "bucket", "s3_bucket"])
def directory(request, tmp_path):
    """An empty directory of each storage."""
    if request.param == "disk":
        return str(tmp_path)
    return f"{request.getfixturevalue(request.param)}/some/dir"


@pytest.fixture
def storage(directory):
    return open_storage(directory)


def test_every_storage_implements_the_protocol(storage):
    assert isinstance(storage, Storage)


@pytest.mark.parametrize("data", [b"", b"onetwo", LARGE], ids=["empty", "small", "large"])
def test_a_published_file_appears_complete_after_the_block(storage, directory, data):
    path = f"{directory}/deep/down/file"
    middle = len(data) // 2
    with storage.publish(path) as sink:
        sink.write(data[:middle])
        sink.write(data[middle:])
        assert not storage.exists(path)
    assert storage.exists(path)
    assert storage.read(path) == data
    assert list(storage.list(f"{directory}/deep/down")) == ["file"]
    assert storage.stat(path).bytes == len(data)
    assert storage.stat(path).crc32c in (None, crc32c(storage.read(path)))


@pytest.mark.parametrize("new", [b"half", LARGE], ids=["small", "large"])
def test_an_exception_in_the_block_leaves_the_old_file_and_no_trace(storage, directory, new):
    path = f"{directory}/file"
    write_file(storage, path, b"old")
    with pytest.raises(RuntimeError), storage.publish(path) as sink:
        sink.write(new)
        raise RuntimeError
    assert storage.read(path) == b"old"
    assert list(storage.list(directory)) == ["file"]


@pytest.mark.parametrize("new", [b"new", LARGE], ids=["small", "large"])
def test_publishing_replaces_an_existing_file(storage, directory, new):
    path = f"{directory}/file"
    write_file(storage, path, b"old and longer")
    write_file(storage, path, new)
    assert storage.read(path) == new


def test_only_the_first_of_two_creations_succeeds(storage, directory):
    assert storage.create(f"{directory}/a/claim", b"first")
    assert not storage.create(f"{directory}/a/claim", b"second")
    assert storage.read(f"{directory}/a/claim") == b"first"
    assert list(storage.list(f"{directory}/a")) == ["claim"]


def test_concurrent_updates_are_all_applied(storage, directory):
    def add(_):
        storage.update(f"{directory}/a/count", lambda there: b"%d" % (int(there or 0) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    assert storage.read(f"{directory}/a/count") == b"16"
    assert list(storage.list(f"{directory}/a")) == ["count"]


def test_an_update_that_fails_changes_nothing(storage, directory):
    write_file(storage, f"{directory}/file", b"old")
    with pytest.raises(ZeroDivisionError):
        storage.update(f"{directory}/file", lambda _: b"%d" % (1 // 0))
    assert storage.read(f"{directory}/file") == b"old"
    storage.update(f"{directory}/file", lambda there: there + b" and new")
    assert storage.read(f"{directory}/file") == b"old and new"


def test_ranges_come_in_order_from_several_files(storage, directory):
    write_file(storage, f"{directory}/a", b"0123456789")
    write_file(storage, f"{directory}/b", b"abcdef")
    ranges = [
        (f"{directory}/a", 8, 2),
        (f"{directory}/b", 0, 3),
        (f"{directory}/a", 0, 1),
        (f"{directory}/a", 5, 0),
    ]
    assert list(storage.read_ranges(ranges)) == [b"89", b"abc", b"0", b""]


def test_many_ranges_are_not_all_read_before_the_first_is_used(storage, directory):
    write_file(storage, f"{directory}/a", LARGE)
    asked = []

    def ranges():
        for i in range(1000):
            asked.append(i)
            yield f"{directory}/a", i, MEGABYTE

    reading = storage.read_ranges(ranges())
    assert next(reading) == LARGE[:MEGABYTE]
    assert len(asked) <= 70
    reading.close()


@pytest.mark.parametrize("offset", [8, 10, 15])
def test_a_range_past_the_end_is_an_error_and_never_short_data(storage, directory, offset):
    write_file(storage, f"{directory}/a", b"0123456789")
    with pytest.raises(
        StorageError, match=rf"/a ends at byte \d+, but bytes {offset}\.\.{offset + 4} are needed"
    ):
        list(storage.read_ranges([(f"{directory}/a", offset, 4)]))


def test_a_file_is_read_from_any_place(storage, directory):
    write_file(storage, f"{directory}/a", LARGE)
    with storage.open(f"{directory}/a") as file:
        assert file.read(4) == LARGE[:4]
        for place in (5, 300_000, 17 * MEGABYTE, len(LARGE) - 3, 100):
            file.seek(place)
            assert file.read(1000) == LARGE[place : place + 1000]
        file.seek(0)
        assert file.read() == LARGE
        assert file.read(1) == b""


@pytest.mark.parametrize("call", ["stat", "read", "open"])
def test_a_missing_file_is_named(storage, directory, call):
    write_file(storage, f"{directory}/file", b"")
    for path in (f"{directory}/nothing", f"{directory}/file/nothing"):
        with pytest.raises(MissingError, match=rf"cannot \w+ {path}: "):
            getattr(storage, call)(path)
        assert not storage.exists(path)
        assert read_file(storage, path) is None


@pytest.mark.parametrize("kind", ["bucket", "s3_bucket"])
def test_a_bucket_that_does_not_exist_is_an_error_of_every_call_and_is_named(request, kind):
    scheme = request.getfixturevalue(kind).partition("://")[0]
    path = f"{scheme}://no-such-bucket/x"
    storage = open_storage(path)
    for call in (
        storage.read,
        storage.stat,
        storage.list,
        storage.exists,
        storage.open,
        storage.delete,
        lambda path: read_file(storage, path),
        lambda path: write_file(storage, path, b""),
        lambda path: storage.create(path, b""),
        lambda path: storage.update(path, lambda _: b"new"),
    ):
        with pytest.raises(
            StorageError,
            match=rf"cannot \w+ {path}: bucket 'no-such-bucket' does not exist \(404\)",
        ):
            call(path)
    with pytest.raises(StorageError, match=f"'{scheme}://' is not a path in a bucket. It must be"):
        storage.read(f"{scheme}://")


def test_deleting_twice_is_no_error(storage, directory):
    write_file(storage, f"{directory}/a", b"")
    storage.delete(f"{directory}/a")
    storage.delete(f"{directory}/a")
    assert storage.list(directory) == storage.list(f"{directory}/nowhere") == {}


def test_listing_gives_files_with_their_sizes_and_directories_apart(storage, directory):
    for name in ("b", "a"):
        write_file(storage, f"{directory}/{name}", name.encode() * 5)
        write_file(storage, f"{directory}/dir {name}/inside", b"")
    found = {name: stat.bytes for name, stat in storage.list(directory).items()}
    assert list(found.items()) == [("a", 5), ("b", 5)]
    assert storage.entries(directory) == (storage.list(directory), ["dir a", "dir b"])
    assert storage.entries(f"{directory}/nowhere") == ({}, [])
    assert storage.exists(f"{directory}/dir a")


@pytest.mark.parametrize(("kind", "name"), [("s3", "/x"), ("gcs", "/x"), ("gcs", "d//x")], ids=str)
def test_a_directory_of_a_bucket_with_a_subdirectory_without_a_name_is_refused(request, kind, name):
    """A walk would come back to the directory, for ever."""
    bucket = request.getfixturevalue("s3_bucket" if kind == "s3" else "bucket")
    server = request.getfixturevalue(f"{kind}_server")
    server.write(bucket.rpartition("/")[2], name, b"")
    directory = f"{bucket}/{name.partition('/')[0]}".rstrip("/")
    with pytest.raises(
        StorageError, match=f"cannot list {directory}: .* as in {directory}//name. Rename the"
    ):
        open_storage(bucket).entries(directory)
    assert open_storage(bucket).list(directory) == {}


def test_stats_agree_unless_size_or_checksum_differ():
    assert Stat(5).agrees_with(Stat(5, 1))
    assert Stat(5, 1).agrees_with(Stat(5, 1))
    assert not Stat(5, 1).agrees_with(Stat(5, 2))
    assert not Stat(5).agrees_with(Stat(6))
    assert (str(Stat(5)), str(Stat(5, 255))) == ("5 bytes", "5 bytes with crc32c 000000ff")


def test_an_unknown_scheme_is_refused():
    with pytest.raises(
        OptionError,
        match=r"ftp:// is not supported. Allowed: a path on a local disk, or gs:// or s3://",
    ):
        open_storage("ftp://bucket/data")
    assert isinstance(open_storage("data"), LocalStorage)


def test_calls_in_parallel_give_their_results_in_order_and_the_first_failure():
    at_once = threading.Barrier(32, timeout=10)
    assert in_parallel(lambda i: (at_once.wait(), i)[1], range(64)) == list(range(64))
    assert in_parallel(str, []) == []
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda i: 1 // i, range(3))


def test_join_works_with_and_without_a_trailing_slash():
    assert join("a/b", "c") == join("a/b/", "c") == "a/b/c"
    assert join("/", "c") == "/c"
    assert join("gs://bucket", "c") == "gs://bucket/c"
