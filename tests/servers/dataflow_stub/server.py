"""The tests' handle of the stand-in."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork_server import Forked

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Service:
    """A running stand-in. flags: what a launcher needs to find it."""

    port: int

    @property
    def flags(self) -> list[str]:
        """The word localhost makes Beam speak REST, where it would speak gRPC."""
        return [f"--dataflow_endpoint=http://localhost:{self.port}", "--no_auth"]

    def order(self, **orders: Any) -> None:
        """What the next job is to be: refusals, states, messages, metrics. Forgets the last one."""
        self._call("orders", orders)

    def change(self, **orders: Any) -> None:
        """The same of the job that is there."""
        self._call("changes", orders)

    def requests(self, method: str) -> list[dict[str, Any]]:
        """Path and body of all calls by this method since the last order."""
        return [request for request in self._call("requests") if request["method"] == method]

    def wait_for_job(self, launcher: Forked, seconds: float = 60.0) -> dict[str, Any]:
        """The body of the job, as soon as one is submitted."""
        deadline = time.monotonic() + seconds
        while not (found := self.requests("POST")):
            if launcher.poll() is not None:
                raise RuntimeError(f"No job was submitted: {launcher.printed}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"No job was submitted in {seconds} s.")
            time.sleep(0.05)
        return found[0]["body"]

    def _call(self, name: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with _OPENER.open(f"http://127.0.0.1:{self.port}/_stub/{name}", data, timeout=60) as answer:
            return json.load(answer)


@contextlib.contextmanager
def start() -> Iterator[Service]:
    """A stand-in in a process of its own; it ends with the block, or with this process."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("service.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the tests, which then end it
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Service(int(process.stdout.readline()))
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
