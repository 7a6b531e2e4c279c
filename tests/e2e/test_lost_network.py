"""A machine that leaves the network amid a training: two hosts in network namespaces, whose link is cut."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.sweep]

WORKER = Path(__file__).with_name("host_worker.py")
TIMEOUT = 12.0  # host_timeout_seconds
JAX, SLACK = 10.0, 8.0  # its abort may come so much later; a busy machine


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def linked():
    """The names of two network namespaces, 10.213.0.1 and 10.213.0.2, and a link between them."""
    names, ends = ([f"{what}{os.getpid()}{side}" for side in "ab"] for what in ("infeed", "inf"))
    try:
        for name in names:
            ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here, which need Linux, iproute2 and root: {error}")
    try:
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.213.0.{number}/24", "dev", end)
            for each in (end, "lo"):
                ip("-n", name, "link", "set", each, "up")
        yield names, ends
    finally:
        for name in names:
            ip("netns", "del", name)


def start(name, index, out):
    told = {"how": "", "where": "", "host": -1, "at": 0, "k": 1, "slow": 0.5}
    told |= {"function": "situation", "count": 2, "devices": 1, "index": index}
    told |= {"address": "10.213.0.1:29871", "xla_flags": os.environ["XLA_FLAGS"]}
    told |= {"out": str(out), "workdir": str(out / "workdir"), "host_timeout_seconds": TIMEOUT}
    with (out / f"{index}.txt").open("wb") as printed:
        command = ["ip", "netns", "exec", name, sys.executable, str(WORKER), json.dumps(told)]
        return subprocess.Popen(command, stdout=printed, stderr=printed)


def test_hosts_whose_link_is_cut_are_ended_by_jax_in_time(linked, tmp_path):
    (first, second), ends = linked
    processes = [start(name, index, tmp_path) for index, name in enumerate((first, second))]
    printed = [tmp_path / f"{index}.txt" for index in range(2)]
    try:
        stop = time.monotonic() + 60
        while "training steps" not in printed[0].read_text():
            assert time.monotonic() < stop, printed[0].read_text()
            time.sleep(0.1)
        time.sleep(3)  # until they have begun, of the 20 s that the training takes
        ip("-n", second, "link", "set", ends[1], "down")
        cut = time.monotonic()
        codes = [process.wait(TIMEOUT + JAX + SLACK) for process in processes]
        assert time.monotonic() - cut < TIMEOUT + JAX + SLACK
    finally:
        for process in processes:
            process.kill()
    for code, path in zip(codes, printed, strict=True):
        assert code in (-signal.SIGABRT, 128 + signal.SIGABRT), path.read_text()
        assert (
            "JAX aborts this process (exit code 134); the same command resumes" in path.read_text()
        )
