"""Starts the S3 server of the tests, and talks to it.

with start(tmp_path) as server:
    server.make_bucket("b")
    subprocess.run([...], env=os.environ | server.env)"""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fake_gcs.faults import Action, Fault, Reset, Short, Stall, Status

__all__ = ["Reset", "Server", "Short", "Stall", "Status", "start"]

SECRET = "a-secret-that-must-not-be-seen"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Server:
    """A running server. env is all that a child process needs to reach it with any client."""

    env: dict[str, str]
    url: str

    def make_bucket(self, name: str) -> None:
        self._call("PUT", f"/{name}")

    def fail(self, pattern: str, action: Action, *, times: int | None = 1, skip: int = 0) -> None:
        """The next `times` requests whose "METHOD path?query" matches suffer it, after `skip` that pass. None: all."""
        self._call("POST", "/_control/fault", Fault(pattern, action, times, skip).to_json())

    def fail_share(self, pattern: str, action: Action, share: float, *, seed: int) -> None:
        """Each match suffers it with probability `share`, decided by (seed, number of the match) alone."""
        fault = Fault(pattern, action, None, share=share, seed=seed)
        self._call("POST", "/_control/fault", fault.to_json())

    def requests(self, pattern: str = "") -> list[dict]:
        """The requests so far whose "METHOD path?query" matches: line, host, range, signed, status, bytes."""
        rows = json.loads(self._call("GET", "/_control/log"))
        return [row for row in rows if re.search(pattern, row["line"])]

    def reset(self) -> None:
        """Forgets faults and log, and ends the answers that are stalled. Objects stay."""
        self._call("POST", "/_control/reset")

    def _call(self, method: str, path: str, body: str = "") -> bytes:
        request = urllib.request.Request(f"{self.url}{path}", body.encode() or None, method=method)
        with _OPENER.open(request, timeout=60) as answer:
            return answer.read()


@contextlib.contextmanager
def start(directory: Path, pace: str = "") -> Iterator[Server]:
    """A server with no buckets; it ends with the block, or with this process. pace: "SECONDS,BYTES_PER_SECOND" of each
    answer."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (directory / "server.log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "fake_s3.app"],
            env=plain | {"PYTHONPATH": str(Path(__file__).parents[1]), "FAKE_S3_PACE": pace},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C is for the tests, which then end it
        )
    with process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().decode().strip()
            if not port:
                raise RuntimeError(f"No server: {(directory / 'server.log').read_text()}")
            url = f"http://127.0.0.1:{port}"
            yield Server(environment(url, directory), url)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(5)


def environment(url: str, directory: Path) -> dict[str, str]:
    """The variables by which unmodified clients find the server. The user's own credentials must not get in.

    What is asked of any other host comes to the server as to a proxy, and shows in its log."""
    return dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), url) | {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(directory / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(directory / "no-credentials"),
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
    }
