"""Real runs of several processes on this machine, for the tests that need them."""

import json
import os
import socket
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from fake_gcs import stand_ins
from fork_server import Forked, ForkServer
from raw_data.imagenet import photographs

WORKER = Path(__file__).with_name("host_worker.py")


@dataclass(frozen=True)
class Ended:
    """One process of a run: its exit code, when it ended (time.time()), all it printed, and what it reported."""

    code: int
    at: float
    printed: str
    report: dict[str, Any]
    out: Path


@pytest.fixture(scope="session", autouse=True)
def _programs(kept_programs):
    pass


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def is_used(address: str) -> bool:
    """Whether somebody listens there."""
    host, port = address.split(":")
    with socket.socket() as s:
        return s.connect_ex((host, int(port))) == 0


@pytest.fixture(name="free_port")
def _free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    return free_port()


@dataclass(frozen=True)
class Run:
    """Processes of one run, under way."""

    processes: list[Forked]
    out: Path
    address: str = ""

    def end(self, timeout_seconds: float = 240, frozen: int = -1) -> list[Ended]:
        """What they were, once all have ended; one that is `frozen` cannot end, and is killed after the others."""
        stop = time.monotonic() + timeout_seconds
        waiting = [process for i, process in enumerate(self.processes) if i != frozen]
        try:
            for process in waiting:
                process.wait(max(0.0, stop - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_seconds} s:\n" + "\n".join(self._printed()))
        finally:
            self.kill()
        ends = [process.wait() for process in self.processes]
        printed = self._printed()
        return [
            Ended(*end, printed[i], reported(self.out / f"{i}.json"), self.out)
            for i, end in enumerate(ends)
        ]

    def _printed(self) -> list[str]:
        return [
            (self.out / f"{i}.txt").read_text(errors="replace") for i in range(len(self.processes))
        ]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture(scope="session")
def start_hosts(fork_server, tmp_path_factory):
    """start_hosts("function", count, devices, **order) -> Run."""
    runs = []

    def start(function: str, count: int, devices: int = 1, **order: Any) -> Run:
        out = tmp_path_factory.mktemp(function)
        common = {"function": function, "count": count, "devices": devices, "out": str(out)} | order
        common.setdefault("workdir", str(out / "workdir"))
        common.setdefault("xla_flags", os.environ["XLA_FLAGS"])
        common["address"] = f"127.0.0.1:{free_port()}"
        commands = [[str(WORKER), json.dumps(common | {"index": i})] for i in range(count)]
        runs.append(replace(start_all(fork_server, commands, out), address=common["address"]))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


@pytest.fixture(scope="session")
def run_hosts(start_hosts):
    """run_hosts("function", count, devices, **order) -> [Ended of process 0, of process 1, ...]."""
    return lambda *args, timeout_seconds=240, **order: start_hosts(*args, **order).end(
        timeout_seconds
    )


@pytest.fixture
def run_commands(fork_server, tmp_path):
    """run_commands([arguments of `python -m trainer RECIPE` for process 0, for process 1, ...]) -> [Ended of each]."""

    def run(
        arguments: list[list[str]], timeout_seconds: float = 120, recipe: str = "digits"
    ) -> list[Ended]:
        command = ["-m", "trainer", recipe, f"--num-processes={len(arguments)}"]
        command.append(f"--coordinator-address=127.0.0.1:{free_port()}")
        commands = [[*command, f"--process-id={i}", *own] for i, own in enumerate(arguments)]
        return start_all(fork_server, commands, tmp_path).end(timeout_seconds)

    return run


def start_all(server: ForkServer, commands: list[list[str]], out: Path) -> Run:
    return Run([server.start(command, out / f"{i}.txt") for i, command in enumerate(commands)], out)


SECRET = "a-planted-secret-that-must-not-show"


@dataclass(frozen=True)
class Credentials:
    """A key file of a user's; neither its secret nor the token made of it may show anywhere."""

    file: str

    @staticmethod
    def assert_not_in(*contents: bytes) -> None:
        """Fails if one of these bytes has the secret or the token."""
        for content in contents:
            assert SECRET.encode() not in content
            assert stand_ins.TOKEN.encode() not in content


@pytest.fixture(scope="session")
def credentials(tmp_path_factory):
    """Credentials, which the stand-in for Google's token service accepts."""
    path = tmp_path_factory.mktemp("credentials") / "key.json"
    secrets = {"client_id": "c", "client_secret": SECRET, "refresh_token": SECRET}
    path.write_text(json.dumps({"type": "authorized_user"} | secrets))
    return Credentials(str(path))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """(raw, out): photographs as raw data and as shards of about 100 KB. Do not change them: copy."""
    raw = photographs(tmp_path_factory.mktemp("photos"))
    raw.convert(out := tmp_path_factory.mktemp("photos"), "--target-shard-bytes=100KB")
    return raw.directory, out


@pytest.fixture
def raw(bucket, photos, gcs_server):
    """gs://bucket/raw: the photos' tars and label files."""
    for file in photos[0].iterdir():
        gcs_server.write(bucket.removeprefix("gs://"), f"raw/{file.name}", file.read_bytes())
    return f"{bucket}/raw"


@pytest.fixture
def shards(bucket, digits, gcs_server):
    """gs://bucket/data: the digits' shards."""
    for file in digits[1].rglob("*"):
        if file.is_file():
            name = f"data/{file.relative_to(digits[1])}"
            gcs_server.write(bucket.removeprefix("gs://"), name, file.read_bytes())
    return f"{bucket}/data"


@pytest.fixture(scope="session")
def downloaded(gcs_server, tmp_path_factory):
    """downloaded("gs://bucket/dir") -> a local copy, made without any of our clients."""

    def download(directory: str) -> Path:
        bucket, _, prefix = directory.removeprefix("gs://").partition("/")
        copy = tmp_path_factory.mktemp("downloaded")
        for name in gcs_server.objects(bucket, f"{prefix}/"):
            if not name.endswith("/"):  # the stand-in for an empty directory
                path = copy / name.removeprefix(f"{prefix}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gcs_server.read(bucket, name))
        return copy

    return download


@pytest.fixture(scope="session")
def saved():
    """saved(local work directory, step) -> (every array of the checkpoint by name, the input's state)."""

    def read(workdir: Path, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        items = {"state": ocp.args.StandardRestore(), "contents": ocp.args.JsonRestore()}
        with ocp.CheckpointManager(workdir / "checkpoints") as manager:
            found = manager.restore(step, args=ocp.args.Composite(**items))
        arrays = jax.tree_util.tree_leaves_with_path(found["state"])
        return {jax.tree_util.keystr(path): np.asarray(array) for path, array in arrays}, found[
            "contents"
        ]["input"]

    return read


def reported(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
