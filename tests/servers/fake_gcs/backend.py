"""Starts fake-gcs-server as a child that cannot outlive the gateway. Linux, standard library only."""

import ctypes
import re
import signal
import subprocess
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def start(
    binary: str, external_url: str, log: Path, seconds: float = 10.0
) -> tuple[subprocess.Popen, int]:
    """(process, port) of a server with an empty memory that listens on 127.0.0.1.

    Call it from the main thread: the kernel kills the child when the thread that started it ends."""
    libc = ctypes.CDLL(None)
    flags = ["-scheme=http", "-host=127.0.0.1", "-port=0", "-backend=memory", "-log-level=error"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, *flags, f"-external-url={external_url}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  no other thread yet
        )
    deadline = time.monotonic() + seconds
    while (port := _listening_port(process.pid)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(
                f"fake-gcs-server does not listen after {seconds} s: {log.read_text()}"
            )
        time.sleep(0.005)
    return process, port


def _listening_port(pid: int) -> int | None:
    """The TCP port that the process listens on. The server takes port 0 but tells nobody which one it got."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
        except FileNotFoundError:  # closed since it was listed
            continue
        if found:
            inodes.add(found.group(1))
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:  # 0A: LISTEN
            return int(fields[1].rsplit(":", 1)[1], 16)
    return None
