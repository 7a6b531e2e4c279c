"""The tests' GCS server is GCS to google-cloud-storage: objects, preconditions, resumable uploads, lists, batches."""

import io
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pytest
from fake_gcs.server import start
from google.api_core import exceptions
from google.cloud import storage

MiB = 1 << 20


@pytest.fixture
def bucket(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    with storage.Client() as client:
        yield client.bucket("things")


def test_an_upload_is_there_with_size_crc32c_and_generation(server, bucket):
    bucket.blob("a/b c").upload_from_string(b"hello")
    found = server.objects("things", "a/")
    assert list(found) == ["a/b c"]
    assert found["a/b c"][:2] == (5, google_crc32c.value(b"hello"))
    blob = bucket.get_blob("a/b c")
    assert blob.generation == found["a/b c"].generation
    assert server.read("things", "a/b c") == b"hello"


def test_what_the_test_writes_a_client_downloads_by_ranges(server, bucket):
    written = server.write("things", "ranges", bytes(range(200)))
    blob = bucket.get_blob("ranges")
    assert (blob.size, blob.generation) == (200, written.generation)
    assert blob.download_as_bytes(start=10, end=19) == bytes(range(10, 20))
    assert blob.download_as_bytes(start=190) == bytes(range(190, 200))
    last = server.requests("GET .*alt=media")[-1]
    assert (last.range, last.status, last.response_bytes, last.authorization) == ("bytes=190-", 206, 10, False)


@pytest.mark.parametrize("size", [100, 9 * MiB], ids=["at once", "resumable"])
def test_generation_0_is_for_the_first_writer_only(server, bucket, size):
    name, data = f"first/{size}", os.urandom(size)
    bucket.blob(name, chunk_size=8 * MiB).upload_from_file(io.BytesIO(data), if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob(name, chunk_size=8 * MiB).upload_from_file(io.BytesIO(bytes(size)), if_generation_match=0)
    assert server.read("things", name) == data
    assert {r.if_generation_match for r in server.requests("POST /upload.*name=first/")} == {0}


def test_only_the_first_of_two_resumable_uploads_of_generation_0_succeeds(server, bucket):
    sessions = [bucket.blob("twin").create_resumable_upload_session(if_generation_match=0) for _ in range(2)]
    assert put(sessions[0], b"one") == 200
    assert put(sessions[1], b"two") == 412
    assert server.read("things", "twin") == b"one"


def test_only_one_of_eight_simultaneous_uploads_of_generation_0_succeeds(server, bucket):
    url = f"{server.url}/upload/storage/v1/b/things/o?uploadType=media&ifGenerationMatch=0&name=crowd"
    for attempt in range(5):
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _, url=f"{url}/{attempt}": send("POST", url, bytes(MiB)), range(8)))
        assert sorted(statuses) == [200] + [412] * 7


def test_a_client_that_dies_half_way_through_its_body_has_written_nothing(server):
    target = "/upload/storage/v1/b/things/o?uploadType=media&name=half"
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as client:
        client.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode() + bytes(500))
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as client:
        chunked = f"POST {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        client.sendall(chunked.encode())
    send("POST", f"{server.url}{target}/other", iter([b"a", b"b"]))
    assert list(server.objects("things", "half")) == ["half/other"]
    assert server.read("things", "half/other") == b"ab"


def test_an_older_generation_neither_overwrites_nor_deletes_nor_reads(server, bucket):
    old = server.write("things", "twice", b"old").generation
    new = server.write("things", "twice", b"new").generation
    blob = bucket.blob("twice")
    for attempt in (blob.delete, blob.download_as_bytes, blob.reload):
        with pytest.raises(exceptions.PreconditionFailed):
            attempt(if_generation_match=old)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"newer", if_generation_match=old)
    assert blob.download_as_bytes(if_generation_match=new) == b"new"
    blob.upload_from_string(b"newer", if_generation_match=new)
    assert server.read("things", "twice") == b"newer"
    with pytest.raises(exceptions.NotFound):
        bucket.delete_blob("twice", generation=new)
    assert "twice" in server.objects("things")


def test_a_chunk_whose_answer_is_lost_is_sent_again_and_counted_once(server, bucket):
    session = bucket.blob("chunks").create_resumable_upload_session()
    data = os.urandom(512 * 1024)
    half = len(data) // 2
    first = {"Content-Range": f"bytes 0-{half - 1}/*"}
    part = {"Content-Range": f"bytes 0-{half - 101}/*"}
    assert [put(session, data[:half], first), put(session, data[: half - 100], part)] == [308, 308]
    assert put(session, b"", {"Content-Range": "bytes */*"}) == 308  # a question, not the end
    last = {"Content-Range": f"bytes {half}-{len(data) - 1}/{len(data)}"}
    assert [put(session, data[half:], last), put(session, data[half:], last)] == [200, 200]
    assert server.read("things", "chunks") == data


def test_objects_are_listed_by_prefix_and_delimiter_over_pages(server, bucket):
    for name in ("list/a", "list/b", "list/c/d", "list/c/e", "other"):
        server.write("things", name, b"")
    pages = bucket.list_blobs(prefix="list/", delimiter="/", page_size=1)
    assert [blob.name for blob in pages] == ["list/a", "list/b"]
    assert pages.prefixes == {"list/c/"}
    assert list(server.objects("things", "list/c")) == ["list/c/d", "list/c/e"]


def test_a_batch_request_deletes_objects(server, bucket):
    for name in ("batch/1", "batch/2", "batch/3"):
        server.write("things", name, b"")
    with bucket.client.batch():
        bucket.blob("batch/1").delete()
        bucket.blob("batch/3").delete()
    assert list(server.objects("things", "batch/")) == ["batch/2"]


def test_parameters_that_the_emulator_ignores_are_refused(bucket):
    with pytest.raises(exceptions.GoogleAPICallError, match="501 .*ignores matchGlob"):
        list(bucket.list_blobs(match_glob="*"))
    with pytest.raises(exceptions.GoogleAPICallError, match="ifGenerationMatch"), bucket.client.batch():
        bucket.blob("x").delete(if_generation_match=1)


def test_a_bucket_that_does_not_exist_is_not_found(bucket):
    with pytest.raises(exceptions.NotFound):
        bucket.client.bucket("nowhere").blob("x").upload_from_string(b"")


@pytest.mark.parametrize("url", ["https://example.com/", "http://example.com/", "https://googleapis.com.example.com/"])
def test_another_host_is_refused(server, url):
    proxies = urllib.request.ProxyHandler({"http": server.url, "https": server.url})
    with pytest.raises((urllib.error.URLError, OSError), match="403") as refused:
        urllib.request.build_opener(proxies).open(url, timeout=10)
    getattr(refused.value, "close", bool)()  # of an HTTPError, which holds the answer
    (request,) = server.requests("example.com")
    assert request.status == 403


def test_both_server_processes_end_with_the_block(tmp_path):
    with start(tmp_path) as server:
        pids = (server.gateway_pid, server.backend_pid)
        assert [running(pid) for pid in pids] == [True, True]
    assert [running(pid) for pid in pids] == [False, False]


def test_the_backend_ends_when_its_gateway_is_killed(tmp_path):
    with start(tmp_path) as server:
        os.kill(server.gateway_pid, signal.SIGKILL)
        wait_until_gone(server.backend_pid)


def test_nothing_is_left_when_the_test_process_is_killed(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from fake_gcs.server import start\n"
        "with start(Path(sys.argv[1])) as server:\n"
        "    print(server.gateway_pid, server.backend_pid, flush=True); time.sleep(60)"
    )
    path = str(Path(sys.modules[start.__module__].__file__).parents[1])
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    wait_until_gone(*pids)


def put(url, body, headers=None):
    return send("PUT", url, body, headers)


def send(method, url, body, headers=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}, method=method)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def wait_until_gone(*pids):
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if running(pid)]}"
        time.sleep(0.02)


def running(pid):
    """A zombie does not run: a container's first process need not reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
