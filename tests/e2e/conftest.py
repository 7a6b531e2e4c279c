"""Real runs of several processes on this machine, for the tests that need them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

WORKER = Path(__file__).with_name("host_worker.py")


@dataclass(frozen=True)
class Ended:
    """One process of a run: its exit code, when it ended (time.time()), all it printed, and what it reported."""

    code: int
    at: float
    printed: str
    report: dict[str, Any]
    out: Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(name="free_port")
def _free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    return free_port()


@pytest.fixture(scope="session")
def run_hosts(tmp_path_factory):
    """run_hosts("function", count, devices, **order) -> [Ended of process 0, of process 1, ...].

    A process that is `frozen` is not waited for: it cannot end. What one has compiled the next finds, layouts and
    tests alike: a quarter of their time was the same programs again."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(
        function: str, count: int, devices: int = 1, *, timeout_seconds: float = 240, frozen: int = -1, **order: Any
    ) -> list[Ended]:
        out = tmp_path_factory.mktemp(function)
        common = {"function": function, "count": count, "devices": devices, "out": str(out)} | order
        common.setdefault("workdir", str(out / "workdir"))
        common["address"] = f"127.0.0.1:{free_port()}"
        commands = [[sys.executable, str(WORKER), json.dumps(common | {"index": i})] for i in range(count)]
        return run_all(commands, out, timeout_seconds, frozen, environment() | cache)

    return run


@pytest.fixture
def run_commands(tmp_path):
    """run_commands([arguments of `python -m trainer digits` for process 0, for process 1, ...]) -> [Ended of each]."""

    def run(arguments: list[list[str]], timeout_seconds: float = 120) -> list[Ended]:
        command = [sys.executable, "-m", "trainer", "digits", f"--num-processes={len(arguments)}"]
        command.append(f"--coordinator-address=127.0.0.1:{free_port()}")
        commands = [[*command, f"--process-id={i}", *own] for i, own in enumerate(arguments)]
        return run_all(commands, tmp_path, timeout_seconds, frozen=-1, env=environment())

    return run


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
        return {jax.tree_util.keystr(path): np.asarray(array) for path, array in arrays}, found["contents"]["input"]

    return read


def run_all(
    commands: list[list[str]], out: Path, timeout_seconds: float, frozen: int, env: dict[str, str]
) -> list[Ended]:
    """Runs the commands at once; ends them all when the time is up."""
    files = [(out / f"{i}.txt").open("wb") for i in range(len(commands))]
    ended: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        processes = []
        for command, file in zip(commands, files, strict=True):
            stack.enter_context(file)
            processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        stop = time.monotonic() + timeout_seconds
        while len(ended.keys() | {frozen}) < len(commands) + (frozen < 0) and time.monotonic() < stop:
            for i, process in enumerate(processes):
                if i not in ended and process.poll() is not None:
                    ended[i] = time.time()
            time.sleep(0.05)
        if frozen >= 0:
            processes[frozen].kill()
            processes[frozen].wait()
        codes = [process.poll() for process in processes]
    printed = [Path(file.name).read_text(errors="replace") for file in files]
    late = [f"process {i}:\n{text}" for i, text in enumerate(printed) if codes[i] is None]
    assert not late, f"still running after {timeout_seconds} s:\n" + "\n".join(late)
    return [
        Ended(code, ended.get(i, time.time()), printed[i], reported(out / f"{i}.json"), out)
        for i, code in enumerate(codes)
    ]


def reported(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def environment() -> dict[str, str]:
    # The repository's root on the path, as `python -m` has it; no proxy between processes of this machine.
    root = str(Path(__file__).parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"PYTHONPATH": root, "PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": "cpu"}
