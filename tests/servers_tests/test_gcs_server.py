"""What tests of buckets rest on: the server's preconditions are those of GCS, and each fault is what clients meet."""

import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from fake_gcs.server import Reset, Short, Stall, Status
from google.api_core import exceptions
from google.cloud import storage

MiB = 1 << 20
DATA = bytes(range(256)) * 4096


@pytest.fixture
def server(gcs_server):
    gcs_server.reset()
    return gcs_server


@pytest.fixture
def things(bucket):
    """A client's bucket."""
    with storage.Client() as client:
        yield client.bucket(bucket.removeprefix("gs://"))


@pytest.fixture
def blob(things):
    things.blob("data").upload_from_string(DATA)
    return things.blob("data")


def test_only_the_first_of_two_resumable_uploads_of_generation_0_succeeds(server, things):
    sessions = [things.blob("twin").create_resumable_upload_session(if_generation_match=0) for _ in range(2)]
    assert put(sessions[0], b"one") == 200
    assert put(sessions[1], b"two") == 412
    assert server.read(things.name, "twin") == b"one"


def test_only_one_of_eight_simultaneous_uploads_of_generation_0_succeeds(server, things):
    url = f"{server.url}/upload/storage/v1/b/{things.name}/o?uploadType=media&ifGenerationMatch=0&name=crowd"
    for attempt in range(3):
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _, url=f"{url}/{attempt}": send("POST", url, bytes(MiB)), range(8)))
        assert sorted(statuses) == [200] + [412] * 7


def test_an_older_generation_neither_overwrites_nor_deletes_nor_reads(server, things):
    old = server.write(things.name, "twice", b"old").generation
    new = server.write(things.name, "twice", b"new").generation
    blob = things.blob("twice")
    for attempt in (blob.delete, blob.download_as_bytes, blob.reload):
        with pytest.raises(exceptions.PreconditionFailed):
            attempt(if_generation_match=old)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"newer", if_generation_match=old)
    assert blob.download_as_bytes(if_generation_match=new) == b"new"


def test_a_client_that_dies_half_way_through_its_body_has_written_nothing(server, things):
    target = f"/upload/storage/v1/b/{things.name}/o?uploadType=media&name=half"
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as client:
        client.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode() + bytes(500))
    send("POST", f"{server.url}{target}/other", iter([b"a", b"b"]))
    assert list(server.objects(things.name, "half")) == ["half/other"]


@pytest.mark.parametrize(("code", "kind"), [(403, exceptions.Forbidden), (503, exceptions.ServiceUnavailable)])
def test_a_status_is_the_error_that_gcs_gives_and_the_log_tells_of_it(server, blob, code, kind):
    server.fail("GET .*/o/data", Status(code), skip=1, times=1)
    blob.reload(retry=None)
    with pytest.raises(kind):
        blob.reload(retry=None)
    blob.reload(retry=None)
    assert [request.status for request in server.requests("GET .*/o/data")] == [200, code, 200]


def test_a_reset_breaks_the_connection_before_any_answer(server, blob):
    server.fail("/o/data", Reset())
    with pytest.raises(requests.exceptions.ConnectionError):
        blob.reload(retry=None)
    assert [request.status for request in server.requests("GET .*/o/data")] == [None]


def test_a_short_answer_has_half_the_body_and_the_full_content_length(server, blob, things):
    server.fail("alt=media", Short())
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as client:
        client.sendall(f"GET /storage/v1/b/{things.name}/o/data?alt=media HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, body = b"".join(iter(lambda: client.recv(1 << 16), b"")).split(b"\r\n\r\n", 1)
    assert b"Content-Length: %d" % len(DATA) in head
    assert body == DATA[: len(DATA) // 2]


def test_a_stall_lasts_its_time_or_until_the_client_gives_up(server, blob):
    server.fail("alt=media", Stall(0.3))
    started = time.monotonic()
    assert blob.download_as_bytes(retry=None) == DATA
    assert time.monotonic() - started >= 0.3
    server.fail("alt=media", Stall())
    with pytest.raises(requests.exceptions.ReadTimeout):
        blob.download_as_bytes(retry=None, timeout=0.2)


@pytest.mark.parametrize("action", [Status(503, when="after"), Reset(when="after"), Stall(when="after")], ids=repr)
def test_a_fault_after_a_request_leaves_its_effect(server, things, action):
    server.fail("POST /upload/.*name=after", action)
    server.fail("POST /upload/.*name=before", type(action)(**{**vars(action), "when": "before"}))
    for when in ("before", "after"):
        with pytest.raises((OSError, exceptions.ServiceUnavailable)):
            things.blob(when).upload_from_string(b"x", retry=None, timeout=0.3)
    assert list(server.objects(things.name)) == ["after"]


def put(url, body, headers=None):
    return send("PUT", url, body, headers)


def send(method, url, body, headers=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}, method=method)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
