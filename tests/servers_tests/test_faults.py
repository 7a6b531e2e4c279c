"""Every fault of the tests' GCS server, as google-cloud-storage meets it; and that the log tells of it."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from fake_gcs.server import Reset, Short, Stall, Status
from google.api_core import exceptions
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

SOON = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02).with_timeout(10)
DATA = bytes(range(256)) * 4096


@pytest.fixture
def blob(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    server.write("things", "data", DATA)
    with storage.Client() as client:
        yield client.bucket("things").blob("data")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (403, exceptions.Forbidden),
        (404, exceptions.NotFound),
        (408, exceptions.GoogleAPICallError),
        (429, exceptions.TooManyRequests),
        (500, exceptions.InternalServerError),
        (502, exceptions.BadGateway),
        (503, exceptions.ServiceUnavailable),
    ],
)
def test_a_status_is_the_error_that_gcs_gives(server, blob, code, kind):
    server.fail("GET .*/o/data", Status(code))
    with pytest.raises(kind) as raised:
        blob.reload(retry=None)
    assert (raised.value.code, "injected" in raised.value.message) == (code, True)
    (request,) = server.requests("/o/data")
    assert (request.status, request.fault) == (code, f"Status(code={code}, retry_after=None, when='before')")
    blob.reload(retry=None)  # once is over


def test_retry_after_is_a_header(server):
    server.fail("GET /storage", Status(429, retry_after=7))
    answer = requests.get(f"{server.url}/storage/v1/b/things", timeout=10)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
    assert answer.json()["error"]["errors"][0]["reason"] == "rateLimitExceeded"


def test_a_reset_breaks_the_connection_before_any_answer(server, blob):
    server.fail("/o/data", Reset())
    with pytest.raises(requests.exceptions.ConnectionError, match="reset by peer"):
        blob.reload(retry=None)
    assert [request.status for request in server.requests("/o/data")] == [None]
    server.reset()
    server.fail("/o/data", Reset(), times=2)
    blob.reload(retry=SOON)
    assert [request.status for request in server.requests("/o/data")] == [None, None, 200]


def test_a_short_answer_has_half_the_body_and_the_full_content_length(server, blob):
    server.fail("alt=media", Short())
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as client:
        client.sendall(b"GET /storage/v1/b/things/o/data?alt=media HTTP/1.1\r\nHost: x\r\n\r\n")
        head, body = b"".join(iter(lambda: client.recv(1 << 16), b"")).split(b"\r\n\r\n", 1)
    assert b"Content-Length: %d" % len(DATA) in head
    assert body == DATA[: len(DATA) // 2]
    server.fail("alt=media", Short())
    assert blob.download_as_bytes(retry=SOON) == DATA


def test_a_stall_of_a_given_time_ends_with_the_answer(server, blob):
    server.fail("alt=media", Stall(0.3))
    started = time.monotonic()
    assert blob.download_as_bytes(retry=None) == DATA
    assert 0.3 <= time.monotonic() - started < 5


def test_an_endless_stall_ends_when_the_client_gives_up_or_the_server_is_reset(server, blob):
    server.fail("alt=media", Stall(), times=None)
    with pytest.raises(requests.exceptions.ReadTimeout):
        blob.download_as_bytes(retry=None, timeout=0.2)
    server.reset()
    server.fail("alt=media", Stall())
    with ThreadPoolExecutor(1) as pool:
        stalled = pool.submit(blob.download_as_bytes, retry=None)
        assert server.wait_for("alt=media").status is None
        server.reset()
        with pytest.raises(requests.exceptions.ConnectionError):
            stalled.result(5)


@pytest.mark.parametrize("action", [Status(503, when="after"), Reset(when="after"), Stall(when="after")], ids=repr)
def test_a_fault_after_a_request_leaves_its_effect(server, blob, action):
    server.fail("POST /upload/.*name=lost/after", action)
    server.fail("POST /upload/.*name=lost/before", type(action)(**{**vars(action), "when": "before"}))
    for when in ("before", "after"):
        with pytest.raises((OSError, exceptions.ServiceUnavailable)):
            blob.bucket.blob(f"lost/{when}").upload_from_string(b"x", retry=None, timeout=0.3)
    assert list(server.objects("things", "lost/")) == ["lost/after"]
    blob.bucket.blob("lost/after").delete()


@pytest.mark.parametrize("action", [Status(503, when="after"), Reset(when="after"), Status(500)], ids=repr)
def test_a_resumable_upload_survives_faults_on_every_chunk(server, blob, action):
    for skip in (0, 2, 4):  # each chunk once, then its repetition passes
        server.fail("PUT /upload.*name=patient", action, skip=skip)
    with blob.bucket.blob("patient").open("wb", chunk_size=512 * 1024, retry=SOON) as file:
        file.write(DATA)
    assert server.read("things", "patient") == DATA


def test_skip_and_times_count_the_matches(server, blob):
    server.fail("/o/data", Status(503), skip=1, times=2)
    seen = [requests.get(f"{server.url}/storage/v1/b/things/o/data", timeout=10).status_code for _ in range(5)]
    assert seen == [200, 503, 503, 200, 200]


def test_a_failing_share_strikes_the_same_requests_for_the_same_seed(server):
    def statuses(seed):
        server.reset()
        server.fail_share("GET", Status(500), 0.3, seed=seed)
        with requests.Session() as session:
            return [session.get(f"{server.url}/storage/v1/b/things", timeout=10).status_code for _ in range(200)]

    first = statuses(seed=1)
    assert first == statuses(seed=1) != statuses(seed=2)
    assert 30 < first.count(500) < 90


def test_slow_down_delays_downloads_only(server, blob):
    server.slow_down(first_byte_seconds=0.1, bytes_per_second=4e6)
    started = time.monotonic()
    assert blob.download_as_bytes() == DATA
    assert 0.1 + len(DATA) / 4e6 <= time.monotonic() - started < 3
    started = time.monotonic()
    blob.reload()
    assert time.monotonic() - started < 0.1


def test_an_invalid_action_is_refused_with_the_allowed_ones(server):
    with pytest.raises(TypeError, match=r"action='503' .* Allowed: Status, Reset, Short, Stall"):
        server.fail("GET", "503")


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (Reset(), requests.exceptions.ConnectionError),
        (Short(), requests.exceptions.ChunkedEncodingError),
        (Stall(), requests.exceptions.ReadTimeout),
    ],
    ids=repr,
)
def test_faults_strike_https_too(server, action, kind):
    server.write("things", "data", DATA)
    https = {"proxies": {"https": server.url}, "verify": server.env["CURL_CA_BUNDLE"], "timeout": 0.5}
    server.fail("GET /things/data", action)
    with pytest.raises(kind):
        requests.get("https://storage.googleapis.com/things/data", **https)
    assert requests.get("https://storage.googleapis.com/things/data", **https).content == DATA


def test_no_secret_is_in_the_log(server):
    requests.get(f"{server.url}/storage/v1/b/things", headers={"Authorization": "Bearer planted"}, timeout=10)
    (request,) = server.requests()
    assert request.authorization
    assert "planted" not in repr(request)
