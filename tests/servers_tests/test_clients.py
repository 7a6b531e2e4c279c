"""TensorFlow, Orbax, tensorstore, Beam and google-auth reach the tests' GCS server by environment variables alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_gcs.server import Status

PROGRAMS = Path(__file__).with_name("client_programs.py")


def environment(server):
    return {"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu"} | server.env


@pytest.fixture(scope="module")
def heavy(running_server, fork_server, tmp_path_factory):
    """What TensorFlow and Orbax found, and the requests that they made."""
    running_server.reset()
    running_server.write("things", "faulty", b"read at last")
    running_server.fail("GET /things/faulty", Status(503), times=2)
    command, out = [str(PROGRAMS), "tensorflow", "orbax"], tmp_path_factory.mktemp("heavy") / "printed"
    code, printed = fork_server.run(command, out, environment(running_server), timeout=120)
    assert code == 0, printed
    return json.loads(printed.splitlines()[-1]), running_server.requests()


def test_tensorflow_reads_writes_lists_and_renames(heavy):
    seen = heavy[0]["tensorflow"]
    assert seen["text"] == "hello"
    assert seen["records"] == [1000, "999"]
    assert seen["glob"] == ["gs://things/moved/records", "gs://things/moved/text"]
    assert sorted(seen["listdir"]) == ["records", "text"]
    assert seen["exists"] == [True, False]


def test_tensorflow_uses_the_proxy_and_retries(heavy):
    seen, requests = heavy
    assert seen["tensorflow"]["faulty"] == "read at last"
    assert [(r.host, r.status) for r in requests if r.path == "/things/faulty"] == [
        ("storage.googleapis.com", 503),
        ("storage.googleapis.com", 503),
        ("storage.googleapis.com", 206),
    ]
    uploads = {(r.scheme, r.host) for r in requests if r.method == "PUT" and "name=tf/" in r.line}
    assert uploads == {("https", "www.googleapis.com")}


def test_orbax_saves_keeps_two_and_restores(heavy, running_server):
    assert heavy[0]["orbax"] == {"steps": [2, 3], "w": [0.0, 3.0, 6.0, 9.0]}
    steps = {name.split("/")[1] for name in running_server.objects("things", "checkpoints/")}
    assert steps == {"", "2", "3"}  # "": TensorFlow's mark of a directory


def test_tensorstore_beam_and_google_clients_need_only_the_environment_variables(server):
    started = time.monotonic()
    names = ("tensorstore", "beam", "credentials", "storage_as_in_production")
    command = [sys.executable, "-W", "ignore", str(PROGRAMS), *names]
    done = subprocess.run(command, env=environment(server), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["tensorstore"] == {"value": "v", "keys": ["k"]}
    assert seen["beam"] == {"read": "a", "match": {"gs://things/beam/b.txt": 1, "gs://things/beam/c.txt": 1}}
    assert seen["credentials"] == {
        "kind": "google.auth.compute_engine.credentials",
        "token": "fake-token",
        "project": "fake-project",
    }
    assert seen["storage_as_in_production"] == "x"
    upload, download = server.requests("name=https|o/https")
    assert [(r.host, r.authorization) for r in (upload, download)] == [("storage.googleapis.com", True)] * 2
    assert list(server.objects("things", "beam/")) == ["beam/c.txt"]
    assert time.monotonic() - started < 15  # without a metadata server google-auth waits longer than that
