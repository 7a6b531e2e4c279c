"""Buckets that speak S3: faults, the text of each error, where requests go, and what a service must offer."""

import os
import pickle
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from fake_s3.server import SECRET, Reset, Short, Stall, Status

from pipeline.errors import StorageError
from pipeline.storage import s3_client
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import write_file


@pytest.fixture
def storage(s3_bucket, monkeypatch):
    limits = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
    monkeypatch.setattr(s3_client, "RETRIES", s3_client.RETRIES | limits)
    monkeypatch.setattr(s3_client, "CLIENT", {"read_timeout": "1s", "timeout": "20s"})
    return open_storage(s3_bucket)


@pytest.fixture
def known(storage, s3_bucket):
    """A bucket in which this process has written."""
    storage.create(f"{s3_bucket}/known", b"")
    return s3_bucket


@pytest.mark.parametrize(
    "fault", [Status(503), Status(500), Status(429), Reset(), Short(), Stall(3)], ids=str
)
def test_a_temporary_failure_is_retried(storage, s3_bucket, s3_server, fault):
    write_file(storage, f"{s3_bucket}/x", b"0123456789" * 1000)
    s3_server.fail("GET .*/x$", fault)
    assert list(storage.read_ranges([(f"{s3_bucket}/x", 5, 5000)])) == [b"5678901234" * 500]
    s3_server.fail("GET .*list-type", fault)
    assert list(storage.list(s3_bucket)) == ["x"]
    if not isinstance(fault, Short | Stall):
        s3_server.fail("PUT .*/y$", fault)
        write_file(storage, f"{s3_bucket}/y", b"y")
        assert storage.read(f"{s3_bucket}/y") == b"y"


@pytest.mark.parametrize("fault", [Status(503, when="after"), Reset(when="after")], ids=str)
def test_a_creation_and_an_update_whose_answers_were_lost_succeeded(
    storage, known, s3_server, fault
):
    s3_server.fail("PUT .*/claim", fault)
    assert storage.create(f"{known}/claim", b"mine")
    s3_server.fail("PUT .*/claim", fault)
    storage.update(f"{known}/claim", lambda there: there + b" still")
    assert storage.read(f"{known}/claim") == b"mine still"
    s3_server.fail("PUT .*/claim", Status(503))
    assert not storage.create(f"{known}/claim", b"yours")


def test_a_service_that_refuses_and_then_loses_an_answer_is_asked_again(storage, known, s3_server):
    for fault in (Status(503), Reset()):
        s3_server.fail("PUT .*/claim", fault)
    assert storage.create(f"{known}/claim", b"mine")


def test_a_service_that_stalls_is_given_up_when_its_time_is_over(
    storage, s3_bucket, s3_server, monkeypatch, forget_s3
):
    monkeypatch.setitem(s3_client.RETRIES, "retry_timeout", timedelta(seconds=2))
    forget_s3()
    s3_server.fail("GET .*/x$", Stall(), times=None)
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"no valid answer \([23] attempts\)"):
        storage.read(f"{s3_bucket}/x")
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("action", "fault", "text"),
    [
        ("read", Status(403), r"cannot read s3://.*/x: permission denied \(403, AccessDenied\)\. The account needs"),
        ("read", Status(400), r"no valid credentials \(ExpiredToken\)\. Set AWS_ACCESS_KEY_ID"),
        ("read", Status(301), r"the bucket is in another region\. Set AWS_REGION to its own"),
        ("read", Status(503), r"status 503, SlowDown \(4 attempts\): Please reduce your request rate\.$"),
        ("read", Reset(), r"no valid answer \(8 attempts\): "),
        ("stat", Status(403), r"cannot find s3://.*/x: permission denied \(403\)"),
        ("list", Status(500), r"cannot list s3://.*/x: status 500, InternalError \(4 attempts\)"),
        ("delete", Status(403), r"cannot delete s3://.*/x: permission denied"),
    ],
)  # fmt: skip
def test_a_permanent_failure_is_one_line_that_names_the_object(
    storage, s3_bucket, s3_server, action, fault, text
):
    write_file(storage, f"{s3_bucket}/x", b"x")
    s3_server.fail("/x|prefix=x", fault, times=None)
    with pytest.raises(StorageError, match=text) as caught:
        getattr(storage, action)(f"{s3_bucket}/x")
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Status(403), r"cannot write s3://.*/x: permission denied \(403, AccessDenied\)"),
        (Status(400), r"no valid credentials \(ExpiredToken\)"),
        (Status(301), r"the bucket is in another region"),
        (Status(503), r"status 503, SlowDown \(4 attempts\)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [10, 9_000_000], ids=["small", "large"])
def test_a_failed_upload_is_one_line_and_leaves_nothing(
    storage, s3_bucket, s3_server, fault, text, size
):
    # of a large one, the request that completes it
    s3_server.fail("PUT .*/x$" if size == 10 else "POST .*/x.uploadId", fault, times=None)
    with pytest.raises(StorageError, match=text) as caught:
        write_file(storage, f"{s3_bucket}/x", bytes(size))
    assert "\n" not in str(caught.value)
    assert storage.entries(s3_bucket) == ({}, [])


@pytest.mark.parametrize("size", [10, 9_000_000], ids=["small", "large"])
def test_an_upload_that_the_bucket_holds_with_another_size_is_refused(
    storage, s3_bucket, s3_server, size
):
    s3_server.fail("HEAD .*/x$", Stall(0.5))

    def another():
        s3_server.wait_for("HEAD .*/x$")
        s3_server.write(s3_bucket.removeprefix("s3://"), "x", b"another's")

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(another)
        with pytest.raises(StorageError, match="/x does not hold the bytes that were uploaded"):
            write_file(storage, f"{s3_bucket}/x", bytes(size))
        written.result()


def test_a_bucket_is_not_an_object(storage, s3_bucket, s3_server):
    for action in (storage.read, storage.stat, storage.delete, storage.open):
        for place in (s3_bucket, f"{s3_bucket}/"):
            with pytest.raises(StorageError, match="is a bucket. Give a name in it"):
                action(place)
    with pytest.raises(StorageError, match="is a bucket"):
        write_file(storage, "s3://new-bucket", b"x")
    assert storage.entries(s3_bucket) == ({}, [])
    assert not s3_server.requests("^(PUT|DELETE)")


def test_of_creators_that_collide_one_succeeds(storage, known, s3_server):
    s3_server.fail("PUT .*/claim", Status(409))
    assert storage.create(f"{known}/claim", b"mine")
    s3_server.fail("PUT .*/claim", Status(409))
    assert not storage.create(f"{known}/claim", b"yours")
    s3_server.fail("PUT .*/claim", Status(409))
    storage.update(f"{known}/claim", lambda there: there + b" still")
    assert storage.read(f"{known}/claim") == b"mine still"


def test_no_request_is_made_twice_without_need(storage, known, s3_server):
    s3_server.reset()
    storage.update(f"{known}/known", lambda there: there)
    for _ in range(3):
        assert not storage.exists(f"{known}/missing/file")
    kinds = [request["line"].split()[0] for request in s3_server.requests()]
    assert kinds.count("PUT") == 0
    assert len(kinds) <= 1 + 3 * 2 + 1  # a file, a directory; and the bucket once


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"AWS_ENDPOINT_URL": "localhost:9"}, r"AWS_ENDPOINT_URL='localhost:9' must be like"),
        (
            {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "1"},
            r"the host of http://127\S+ is an address, to which no",
        ),
        ({"AWS_SECRET_ACCESS_KEY": None}, r"s3://\S+: .*Secret.*See the variables AWS_"),
        ({"AWS_PROFILE": "typo"}, r"profile \(typo\) could not be found.* See AWS_PROFILE"),
    ],
    ids=str,
)
def test_wrong_settings_are_one_line(storage, s3_bucket, monkeypatch, forget_s3, env, text):
    for name, value in env.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    forget_s3()
    with pytest.raises(StorageError, match=text) as caught:
        storage.read(f"{s3_bucket}/x")
    assert "\n" not in str(caught.value)


HOST, AMAZON = "https://host", "https://s3.us-east-1.amazonaws.com"
FIPS = "https://s3-fips.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("env", "endpoint", "urls"),
    [
        ({"AWS_ENDPOINT_URL": f"{HOST}/"}, HOST, [f"{HOST}/plain", f"{HOST}/with.dots"]),
        ({"AWS_ENDPOINT": HOST}, HOST, [f"{HOST}/plain", f"{HOST}/with.dots"]),
        ({"AWS_ENDPOINT_URL_S3": FIPS, "AWS_ENDPOINT_URL": HOST}, FIPS, [f"{FIPS}/plain", f"{FIPS}/with.dots"]),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, FIPS, [f"{FIPS}/plain", f"{FIPS}/with.dots"]),
        ({"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "AWS_ENDPOINT_URL": HOST}, HOST, ["https://plain.host", "https://with.dots.host"]),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", "AWS_ENDPOINT_URL": HOST}, None,
         ["https://plain.s3.us-east-1.amazonaws.com", f"{AMAZON}/with.dots"]),
        ({"AWS_ENDPOINT_URL": ""}, None, ["https://plain.s3.us-east-1.amazonaws.com", f"{AMAZON}/with.dots"]),
        ({}, None, [None, None]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("files", [False, True], ids=["variables", "files"])
def test_an_endpoint_that_is_stated_is_the_only_one(
    storage, monkeypatch, forget_s3, tmp_path, env, endpoint, urls, files
):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if files:
        (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    forget_s3()
    assert s3_client.service().endpoint == endpoint
    plain, dotted = (s3_client.store_of(name).config for name in ("plain", "with.dots"))
    # no variable overrides this key, and in this style the client does not append the bucket
    assert [config.get("endpoint_url_s3") for config in (plain, dotted)] == urls
    virtual = [config["virtual_hosted_style_request"] for config in (plain, dotted)]
    assert virtual == ["true", "true" if urls[1] else "false"]


def test_an_endpoint_that_nothing_listens_on_is_one_line(
    storage, s3_bucket, monkeypatch, forget_s3
):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    forget_s3()
    with pytest.raises(StorageError, match=r"no valid answer \(8 attempts\)"):
        storage.read(f"{s3_bucket}/x")


@pytest.mark.parametrize("name", ["/a", "a//b", "./a", "a/../b", "a\tb"])
def test_names_that_no_client_can_send_are_refused(storage, s3_bucket, name):
    for use in (storage.read, storage.list, lambda path: write_file(storage, path, b"")):
        with pytest.raises(StorageError, match="no part that is empty, '.' or '..'; rename what"):
            use(f"{s3_bucket}/{name}/x")
    assert storage.entries(s3_bucket) == ({}, [])


@pytest.mark.parametrize("name", ["d//x", "d/../x", "d/a\tb"])
def test_a_directory_in_which_another_tool_made_such_a_name_cannot_be_listed(
    storage, s3_bucket, s3_server, name
):
    s3_server.write(s3_bucket.removeprefix("s3://"), name, b"")
    with pytest.raises(StorageError, match=r"cannot list \S+: .*; rename what has one"):
        storage.list(f"{s3_bucket}/d")


@pytest.mark.parametrize("name", ["ignores", "refuses"])
def test_a_service_without_conditional_writes_is_refused_before_anything_is_written(
    storage, s3_bucket, s3_server, name
):
    bucket = "s3://lax-bucket" if name == "ignores" else s3_bucket
    if name == "ignores":
        s3_server.make_bucket("lax-bucket")
    else:
        s3_server.fail("PUT .*/run/", Status(501), skip=1, times=None)
    with pytest.raises(
        StorageError, match=f"{bucket}: this service ignores or refuses conditional writes"
    ):
        storage.create(f"{bucket}/run/claim", b"mine")
    assert storage.entries(bucket) == ({}, [])


def test_an_abandoned_upload_leaves_no_parts(storage, s3_bucket, s3_server):
    with pytest.raises(RuntimeError), storage.publish(f"{s3_bucket}/x") as sink:
        sink.write(bytes(20_000_000))
        raise RuntimeError
    assert s3_server.requests("DELETE .*uploadId")
    uploads = s3_server._call("GET", f"/{s3_bucket.removeprefix('s3://')}?uploads").decode()
    assert "<UploadId>" not in uploads


def test_directories_that_other_tools_made_are_not_files(storage, s3_bucket, s3_server):
    name = s3_bucket.removeprefix("s3://")
    s3_server._call("PUT", f"/{name}/d/", "")
    s3_server._call("PUT", f"/{name}/d/x", "x")
    assert list(storage.list(f"{s3_bucket}/d")) == ["x"]
    assert storage.entries(s3_bucket) == ({}, ["d"])
    storage.create(f"{s3_bucket}/empty/", b"")
    assert storage.exists(f"{s3_bucket}/empty/")
    assert storage.entries(f"{s3_bucket}/empty") == ({}, [])


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_bucket_may_be_a_part_of_the_host_name(
    storage, s3_bucket, s3_server, monkeypatch, forget_s3, variable
):
    # No name resolves here: the server is the proxy.
    monkeypatch.setenv(variable, "http://s3.test")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    forget_s3()
    s3_server.reset()
    write_file(storage, f"{s3_bucket}/d/x", b"x")
    assert storage.read(f"{s3_bucket}/d/x") == b"x"
    assert list(storage.list(f"{s3_bucket}/d")) == ["x"]
    hosts = {request["host"] for request in s3_server.requests()}
    assert hosts == {f"{s3_bucket.removeprefix('s3://')}.s3.test"}


def test_profiles_in_files_state_the_endpoint_and_the_credentials(
    storage, s3_bucket, monkeypatch, tmp_path, forget_s3
):
    url = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = eu-north-1\nendpoint_url = {url}/\n"
    )
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = k\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    forget_s3()
    write_file(storage, f"{s3_bucket}/x", b"x")
    assert storage.read(f"{s3_bucket}/x") == b"x"
    assert s3_client.service()[:3] == (url, "eu-north-1", False)
    # boto3 renews credentials ten minutes before they expire, so none is kept for longer
    expires = s3_client.service().credentials()["expires_at"]
    assert expires <= datetime.now(UTC) + timedelta(minutes=10)
    monkeypatch.setitem(sys.modules, "boto3", None)
    for needs_boto3 in ({}, {"AWS_ACCESS_KEY_ID": "k", "AWS_USE_FIPS_ENDPOINT": "true"}):
        for variable, value in needs_boto3.items():
            monkeypatch.setenv(variable, value)
        forget_s3()
        with pytest.raises(StorageError, match=r"AWS_PROFILE, .* the files in ~/\.aws need boto3"):
            storage.read(f"{s3_bucket}/x")


PROGRAM = """
import os, sys
from pipeline.storage.schemes import open_storage
storage = open_storage(sys.argv[1])
storage.exists(sys.argv[1])
if os.fork() == 0:
    try:
        storage.exists(sys.argv[1])
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_process_forked_from_one_that_used_s3_is_refused(s3_bucket):
    command = [sys.executable, "-c", PROGRAM, f"{s3_bucket}/x"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert re.search(r'forked, and its client cannot be shared\. Start workers by "spawn"', printed)


def test_what_travels_in_jobs_has_no_secret(storage, s3_bucket):
    storage.exists(f"{s3_bucket}/x")
    assert SECRET.encode() not in pickle.dumps(storage)
    assert SECRET not in repr(storage)
