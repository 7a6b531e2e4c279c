"""A bucket that fails: what passes is tried again, what does not is one clear error, and nothing is lost or doubled."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_gcs.server import Reset, Short, Stall, Status
from google.auth.credentials import AnonymousCredentials

from pipeline.errors import StorageError
from pipeline.storage import gcs_calls
from pipeline.storage.gcs import GcsStorage
from pipeline.storage.storage import write_file

LARGE = os.urandom(256 * 1024) * 80  # 20 MiB: three pieces of an upload
SIZES = pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])


@pytest.fixture
def storage(bucket, monkeypatch):
    monkeypatch.setattr(gcs_calls, "WAIT_SECONDS", (0.05, 0.2))
    return GcsStorage()


@pytest.fixture
def short_time_outs(monkeypatch):
    for module in ("gcs", "gcs_calls", "gcs_ranges"):
        monkeypatch.setattr(f"pipeline.storage.{module}.TIMEOUT_SECONDS", (2.0, 0.4))


FAULTS = [Status(429), Status(503, retry_after=1), Reset(), Short()]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_read_that_fails_temporarily_is_retried(storage, bucket, gcs_server, fault):
    write_file(storage, f"{bucket}/x", LARGE)
    gcs_server.fail("GET .*alt=media", fault, times=2)
    ranges = [(f"{bucket}/x", i * 1000, 1000) for i in range(8)]
    assert b"".join(storage.read_ranges(ranges)) == LARGE[:8000]
    gcs_server.fail("GET .*alt=media", fault)
    assert storage.read(f"{bucket}/x") == LARGE


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [lambda when: Status(503, when=when), Reset], ids=["503", "reset"])
@SIZES
def test_a_write_that_fails_temporarily_ends_with_one_complete_object(
    storage, bucket, gcs_server, data, kind, when
):
    # "after": it was done, and the answer was lost; the second attempt then finds its own work.
    gcs_server.fail("(POST|PUT) /.*upload", kind(when), times=1, skip=1 if data is LARGE else 0)
    write_file(storage, f"{bucket}/x", data)
    assert storage.read(f"{bucket}/x") == data
    assert list(gcs_server.objects(bucket.removeprefix("gs://"))) == ["x"]


def test_a_claim_whose_answer_was_lost_is_still_ours(storage, bucket, gcs_server):
    gcs_server.fail("POST .*upload", Status(503, when="after"))
    assert storage.create(f"{bucket}/claim", b"mine")
    gcs_server.fail("POST .*upload", Status(503, when="before"))
    assert not storage.create(f"{bucket}/claim", b"another's")


def test_an_update_whose_answer_was_lost_is_not_made_twice(storage, bucket, gcs_server):
    def add(there):
        return b"%d" % (int(there or 0) + 1)

    for _ in range(2):
        gcs_server.fail("POST .*upload", Status(503, when="after"))
        storage.update(f"{bucket}/count", add)
    assert storage.read(f"{bucket}/count") == b"2"


def test_an_update_that_always_loses_the_race_is_one_clear_error(
    storage, bucket, gcs_server, monkeypatch
):
    monkeypatch.setattr("pipeline.storage.objects._UPDATES", 3)
    gcs_server.fail("POST .*upload", Status(412), times=None)
    with pytest.raises(
        StorageError, match="cannot update gs://.*/x: others changed it first, 3 times"
    ):
        storage.update(f"{bucket}/x", lambda _: b"mine")


def test_a_read_that_stalls_is_tried_again(storage, bucket, gcs_server, short_time_outs):
    write_file(storage, f"{bucket}/x", b"0123456789")
    gcs_server.fail("GET .*alt=media", Stall(), times=1)
    begun = time.monotonic()
    assert storage.read(f"{bucket}/x") == b"0123456789"
    assert 0.3 < time.monotonic() - begun < 10


def test_a_revoked_token_is_renewed_once(storage, bucket, gcs_server, monkeypatch):
    class Account(AnonymousCredentials):
        refreshed = 0

        def refresh(self, request):
            self.refreshed += 1

    write_file(storage, f"{bucket}/x", b"0123456789")
    monkeypatch.setattr("pipeline.storage.gcs_ranges.credentials", lambda: account)
    account = Account()
    gcs_server.fail("GET .*alt=media", Status(401), times=1)
    assert storage.read(f"{bucket}/x") == b"0123456789"
    gcs_server.fail("GET .*alt=media", Status(401), times=2)
    with pytest.raises(StorageError, match=r"no valid credentials \(401\)"):
        storage.read(f"{bucket}/x")
    assert account.refreshed == 2


@pytest.mark.parametrize(
    ("call", "fault", "text"),
    [
        ("read", Status(503), r"cannot read gs://\S+/x: status 503 \(\d+ attempts in 1 s\): "),
        ("read", Reset(), r"cannot read gs://\S+/x: (Connection|Protocol)Error \(\d+ attempts in 1 s\): "),
        ("list", Status(429), r"cannot list gs://\S+: status 429 \(\d+ attempts in 1 s\): "),
        ("write", Status(503), r"cannot write gs://\S+/x: status 503 \(\d+ attempts in 1 s\): "),
        ("write large", Status(503), r"cannot write gs://\S+/x: .*503.*"),
    ],
)  # fmt: skip
def test_a_permanent_failure_names_object_status_and_attempts_within_the_time_limit(
    storage, bucket, gcs_server, monkeypatch, call, fault, text
):
    write_file(storage, f"{bucket}/x", b"0123456789")
    monkeypatch.setattr(gcs_calls, "RETRY_SECONDS", 1.0)
    gcs_server.fail("/(b|o)[/?]" if "write" not in call else "upload", fault, times=None)
    calls = {
        "read": lambda: storage.read(f"{bucket}/x"),
        "list": lambda: storage.list(bucket),
        "write": lambda: write_file(storage, f"{bucket}/x", b"new"),
        "write large": lambda: write_file(storage, f"{bucket}/x", LARGE),
    }
    begun = time.monotonic()
    with pytest.raises(StorageError, match=text):
        calls[call]()
    assert time.monotonic() - begun < 10
    gcs_server.reset()
    assert storage.read(f"{bucket}/x") == b"0123456789"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Status(403), r"/x: permission denied, or a quota is used up \(403\)\. The account needs the role"),
        (Status(401), r"/x: no valid credentials \(\w+\)\. Run `gcloud auth application-default login`"),
    ],
)  # fmt: skip
def test_a_refused_request_is_not_retried(storage, bucket, gcs_server, fault, text):
    gcs_server.fail("alt=media", fault, times=None)
    with pytest.raises(StorageError, match=text):
        storage.read(f"{bucket}/x")
    assert len(gcs_server.requests("alt=media")) == 1


@SIZES
def test_two_writers_of_the_same_bytes_at_once_both_succeed_and_leave_one_object(
    storage, bucket, gcs_server, data
):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_file(storage, f"{bucket}/x", data), range(4)))
    assert storage.read(f"{bucket}/x") == data
    assert len(gcs_server.objects(bucket.removeprefix("gs://"))) == 1


def publish_beside_another(storage, path, gcs_server, another):
    """A large upload in the middle of which somebody else finishes one; the bucket refuses ours at its end."""
    with storage.publish(path) as sink:
        sink.write(LARGE)
        gcs_server.write(*path.removeprefix("gs://").split("/", 1), another)


def test_uploading_a_large_object_that_a_twin_already_wrote_succeeds(storage, bucket, gcs_server):
    publish_beside_another(storage, f"{bucket}/x", gcs_server, LARGE)
    assert storage.read(f"{bucket}/x") == LARGE


def test_another_large_object_that_appears_during_an_upload_is_not_overwritten_blindly(
    storage, bucket, gcs_server
):
    with pytest.raises(
        StorageError, match="/x was written by someone else, with other bytes, during the upload"
    ):
        publish_beside_another(storage, f"{bucket}/x", gcs_server, b"another's")
    assert storage.read(f"{bucket}/x") == b"another's"


def test_a_write_succeeds_if_a_twin_writes_the_same_bytes_first(storage, bucket, gcs_server):
    gcs_server.write(bucket.removeprefix("gs://"), "x", b"old")
    # between our look and our overwriting
    gcs_server.fail("POST .*upload", Status(412, when="after"), skip=1)
    write_file(storage, f"{bucket}/x", b"new")
    gcs_server.write(bucket.removeprefix("gs://"), "y", LARGE)
    gcs_server.fail("POST .*upload.*resumable", Status(412))  # before the first piece
    write_file(storage, f"{bucket}/y", LARGE)
    assert (storage.read(f"{bucket}/x"), storage.read(f"{bucket}/y")) == (b"new", LARGE)


@SIZES
def test_another_writer_that_is_always_faster_is_one_clear_error(storage, bucket, gcs_server, data):
    gcs_server.write(bucket.removeprefix("gs://"), "x", b"another's")
    gcs_server.fail("POST .*upload", Status(412), times=None)
    with pytest.raises(StorageError, match="/x was written by someone else, with other bytes"):
        write_file(storage, f"{bucket}/x", data)


def test_replacing_an_object_survives_a_lost_answer(storage, bucket, gcs_server):
    write_file(storage, f"{bucket}/x", b"before")
    # done, but ours looks like another's
    gcs_server.fail("upload.*name=x", Status(503, when="after"), skip=1)
    write_file(storage, f"{bucket}/x", b"after")
    assert len(gcs_server.requests("upload.*name=x")) == 4
    assert storage.read(f"{bucket}/x") == b"after"


def test_every_upload_carries_a_precondition(storage, bucket, gcs_server):
    for data in (b"small", b"smaller", LARGE, LARGE[1:]):
        write_file(storage, f"{bucket}/x", data)
    storage.create(f"{bucket}/y", b"claim")
    begun = [request for request in gcs_server.requests("POST .*upload") if request.query]
    assert len(begun) >= 5
    assert all(request.if_generation_match is not None for request in begun)


def test_an_open_file_holds_one_piece_of_four_mib_at_the_most(storage, bucket, monkeypatch):
    """A scan has sixteen class tars open at once, and a worker more than one scan."""
    write_file(storage, f"{bucket}/x", LARGE)
    held, sizes, part = [], [], GcsStorage.part

    def spied(self, path, offset, size, left):
        held.append(len(file.raw._ahead))
        sizes.append(size)
        return part(self, path, offset, size, left)

    monkeypatch.setattr(GcsStorage, "part", spied)
    with storage.open(f"{bucket}/x") as file:
        assert b"".join(iter(lambda: file.read(100_000), b"")) == LARGE
    assert set(held) == {0}
    assert (sizes[0], max(sizes)) == (128 * 1024, 4 * 1024**2)


def test_credentials_that_are_found_late_are_not_those_of_another_server(bucket, monkeypatch):
    server, looking, found = (
        os.environ["STORAGE_EMULATOR_HOST"],
        threading.Event(),
        threading.Event(),
    )

    def default():
        looking.set()
        assert found.wait(60)
        return object(), None

    monkeypatch.setattr("google.auth.default", default)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    thread = threading.Thread(target=gcs_calls.credentials)
    thread.start()
    assert looking.wait(60)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    gcs_calls._client.cache_clear()
    gcs_calls._credentials.cache_clear()
    found.set()
    thread.join()
    assert isinstance(gcs_calls.credentials(), AnonymousCredentials)
