"""The S3 server of the tests is what the other tests take it for: a store with conditions, ranges, pages and faults."""

import collections
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.client import HTTPConnection

import obstore
import pytest
from fake_s3.server import Reset, Short, Stall, Status, start
from obstore import exceptions as failed
from obstore.store import S3Store

pytestmark = pytest.mark.slow

DATA = os.urandom(10_000)


@pytest.fixture
def name(s3_bucket):
    return s3_bucket.removeprefix("s3://")


def client(server, name, read_timeout="500ms"):
    """A client of the bucket that never retries."""
    return S3Store(
        name,
        endpoint=server.url,
        region="us-east-1",
        access_key_id="tests",
        secret_access_key="x",
        client_options={"allow_http": True, "read_timeout": read_timeout},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
    )


def test_of_many_writers_that_create_or_replace_an_object_one_succeeds(s3_server, name):
    store, successes = client(s3_server, name), collections.Counter()

    def write(key, mode):
        try:
            obstore.put(store, key, os.urandom(8), mode=mode, use_multipart=False)
            successes[key, str(mode)] += 1
        except (failed.AlreadyExistsError, failed.PreconditionError):
            pass

    with ThreadPoolExecutor(8) as pool:
        for key in "abc":
            list(pool.map(write, [key] * 8, ["create"] * 8))
            etag = s3_server.objects(name)[key].etag
            list(pool.map(write, [key] * 8, [{"e_tag": etag}] * 8))
    assert list(successes.values()) == [1] * 6


def test_large_objects_ranges_pages_and_names_are_those_of_a_store(s3_server, name):
    store, data = client(s3_server, name, "30s"), DATA * 1500
    obstore.put(store, "large", data)
    assert len(s3_server.requests("PUT .*partNumber")) == 3
    assert bytes(obstore.get_range(store, "large", start=14_999_995, length=100)) == data[-5:]
    assert bytes(obstore.get(store, "large", options={"range": {"suffix": 3}}).bytes()) == data[-3:]
    names = {f"d/{number:04} ü+%&?#": b"%d" % number for number in range(1001)}
    for key, value in names.items():
        s3_server.write(name, key, value)
    assert list(s3_server.objects(name, "d/")) == list(names)
    listed = obstore.list_with_delimiter(store, "d")["objects"]
    assert sorted(found["path"] for found in listed) == list(names)
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["d"]
    assert bytes(obstore.get(store, "d/0007 ü+%&?#").bytes()) == b"7"
    obstore.delete(store, "no-such-key")
    s3_server.empty(name)
    assert s3_server.objects(name) == {}


FAULTS = [
    (Status(301), 301, "redirect"),
    (Status(400), 400, "<Code>ExpiredToken</Code><Message>The provided token has expired.</Message>"),
    (Status(403), 403, "<Code>AccessDenied</Code>"),
    (Status(404), 404, "<Code>NoSuchBucket</Code>.*<RequestId>"),
    (Status(429), 429, "429 .*TooManyRequests"),
    (Status(500), 500, "500 .*InternalError"),
    (Status(503), 503, "503 .*<Code>SlowDown</Code><Message>Please reduce your request rate"),
    (Reset(), None, "error sending request"),
    (Short(), 200, "body error"),
    (Stall(1.0), None, "error sending request"),
    (Stall(when="after"), 200, "body error"),  # in the middle of the body
]  # fmt: skip


@pytest.mark.parametrize(("fault", "status", "text"), FAULTS, ids=str)
def test_a_client_sees_each_fault_as_often_as_it_was_ordered(s3_server, name, fault, status, text):
    store = client(s3_server, name)
    s3_server.write(name, "x", DATA)
    s3_server.fail("GET .*/x$", fault, skip=1)
    assert bytes(obstore.get(store, "x").bytes()) == DATA
    with pytest.raises((failed.BaseError, OSError), match=f"(?s){text}"):
        obstore.get(store, "x").bytes()
    assert bytes(obstore.get(store, "x").bytes()) == DATA
    rows = [(row["fault"], row["status"]) for row in s3_server.requests("GET .*/x$")]
    assert rows == [("", 200), (repr(fault), status), ("", 200)]


@pytest.mark.parametrize("fault", [Status(503, when="after"), Reset("after")], ids=str)
def test_a_write_survives_its_lost_answer_and_none_is_made_for_a_client_that_left(
    s3_server, name, fault
):
    store = client(s3_server, name)
    s3_server.fail("PUT .*/x$", fault)
    with pytest.raises((failed.BaseError, OSError)):
        obstore.put(store, "x", b"mine", mode="create", use_multipart=False)
    assert s3_server.read(name, "x") == b"mine"
    s3_server.fail("PUT .*/y$", Stall())
    with pytest.raises((failed.BaseError, OSError)):
        obstore.put(store, "y", b"late", use_multipart=False)
    connection = HTTPConnection(s3_server.url.removeprefix("http://"))
    connection.putrequest("PUT", f"/{name}/z")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"half")
    connection.close()
    time.sleep(0.1)
    assert list(s3_server.objects(name)) == ["x"]


def test_a_bucket_may_lack_conditional_writes(s3_server, name):
    for lacking in ("lax-test", "old-test"):
        s3_server.make_bucket(lacking)
        s3_server.write(lacking, "x", b"")
    obstore.put(client(s3_server, "lax-test"), "x", b"2", mode="create", use_multipart=False)
    with pytest.raises((failed.BaseError, OSError), match="501.*NotImplemented|not implemented"):
        obstore.put(client(s3_server, "old-test"), "x", b"2", mode="create", use_multipart=False)
    assert (s3_server.read("lax-test", "x"), s3_server.read("old-test", "x")) == (b"2", b"")


def test_each_answer_of_a_paced_server_has_a_rate_of_its_own(tmp_path):
    with start(tmp_path, pace="0.03,10e6") as server:
        server.make_bucket("paced")
        server.write("paced", "x", bytes(1_000_000))
        store, began = client(server, "paced"), time.perf_counter()
        threads = [
            threading.Thread(
                target=obstore.get_range,
                args=(store, "x"),
                kwargs={"start": 0, "length": 1_000_000},
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0.13 <= time.perf_counter() - began < 0.4
