"""Starts the S3 server of the tests, and talks to it.

with start(tmp_path) as server:
    server.make_bucket("photos")
    subprocess.run([...], env=os.environ | server.env)

What a test sets up or looks at (write, read, delete, objects) is neither struck by faults nor in the log."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from fake_gcs.faults import Action, Fault, Reset, Short, Stall, Status

__all__ = ["Object", "Reset", "Server", "Short", "Stall", "Status", "start"]

SECRET = "a-secret-that-must-not-be-seen"
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0"
)
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Object(NamedTuple):
    """An object as the store describes it; the ETag with its quotes."""

    size: int
    etag: str


@dataclass(frozen=True)
class Server:
    """A running server. env is all that a child process needs to reach it with any client."""

    env: dict[str, str]
    url: str
    pid: int

    def make_bucket(self, name: str) -> None:
        self._call("PUT", f"/{name}")

    def write(self, bucket: str, name: str, data: bytes) -> None:
        self._call("PUT", f"/{bucket}/{quote(name)}", data)

    def read(self, bucket: str, name: str) -> bytes:
        return self._call("GET", f"/{bucket}/{quote(name)}")

    def delete(self, bucket: str, name: str) -> None:
        self._call("DELETE", f"/{bucket}/{quote(name)}")

    def objects(self, bucket: str, prefix: str = "") -> dict[str, Object]:
        """Name -> size and ETag of every object under the prefix, in the order of the names."""
        found, query = {}, {"list-type": "2", "prefix": prefix}
        while True:
            page = ElementTree.fromstring(self._call("GET", f"/{bucket}?{urlencode(query)}"))
            for item in page.iterfind("{*}Contents"):
                name, size, etag = (
                    item.findtext(f"{{*}}{tag}", "") for tag in ("Key", "Size", "ETag")
                )
                found[name] = Object(int(size), etag)
            if not (token := page.findtext("{*}NextContinuationToken")):
                return found
            query["continuation-token"] = token

    def empty(self, bucket: str) -> None:
        while names := list(self.objects(bucket))[:1000]:
            keys = (f"<Object><Key>{escape(name)}</Key></Object>" for name in names)
            self._call("POST", f"/{bucket}?delete", f"<Delete>{''.join(keys)}</Delete>")

    def fail(self, pattern: str, action: Action, *, times: int | None = 1, skip: int = 0) -> None:
        """The next `times` requests whose "METHOD path?query" matches suffer it, after `skip` that pass. None: all.

        A Stall after a GET comes in the middle of the body. Status: 301 (another region), 400 (ExpiredToken), 403, 404
        (NoSuchBucket), 429, 500, 501, 503 (SlowDown)."""
        self._call("POST", "/_control/fault", Fault(pattern, action, times, skip).to_json())

    def fail_share(self, pattern: str, action: Action, share: float, *, seed: int) -> None:
        """Each match suffers it with probability `share`, decided by (seed, number of the match) alone."""
        fault = Fault(pattern, action, None, share=share, seed=seed)
        self._call("POST", "/_control/fault", fault.to_json())

    def requests(self, pattern: str = "") -> list[dict]:
        """The requests so far whose "METHOD path?query" matches, in order of arrival: line, host, range, signed, received
        (bytes), status (None: no answer yet, or none at all), bytes (of the answer's body), fault."""
        rows = json.loads(self._call("GET", "/_control/log"))
        return [row for row in rows if re.search(pattern, row["line"])]

    def wait_for(self, pattern: str, seconds: float = 30.0) -> dict:
        """The first request that matches, as soon as it is there: it may still be under way, or stalled."""
        deadline = time.monotonic() + seconds
        while not (found := self.requests(pattern)):
            if time.monotonic() > deadline:
                lines = "\n".join(row["line"] for row in self.requests())
                raise TimeoutError(
                    f"No request matches {pattern!r} after {seconds} s. There were:\n{lines}"
                )
            time.sleep(0.02)
        return found[0]

    def reset(self) -> None:
        """Forgets faults and log, and ends the answers that are stalled. Objects stay."""
        self._call("POST", "/_control/reset")

    def _call(self, method: str, path: str, body: str | bytes = b"") -> bytes:
        data = body.encode() if isinstance(body, str) else body
        headers = {"X-Fake-S3-Direct": "1", "Content-Type": "application/octet-stream"}
        headers["Authorization"] = _SIGNED  # else moto takes the test for a stranger
        request = urllib.request.Request(
            f"{self.url}{path}",
            data if method in ("PUT", "POST") else None,
            headers,
            method=method,
        )
        try:
            with _OPENER.open(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(
                    f"{method} {path} is answered {error.code}: {error.read().decode()}"
                ) from None


@contextlib.contextmanager
def start(directory: Path, pace: str = "") -> Iterator[Server]:
    """A server with no buckets; it ends with the block, or with this process. Call it from the main thread: the kernel
    ends the server with the thread that started it.

    pace: "SECONDS,BYTES_PER_SECOND" of each answer, as in "0.03,40e6"."""
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
            yield Server(environment(url, directory), url, process.pid)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(5)
            # a child that the test has forked holds the pipe open
            except subprocess.TimeoutExpired:
                process.kill()
    if complaints := (directory / "server.log").read_text():
        raise RuntimeError(f"The server failed, and clients saw what no S3 does:\n{complaints}")


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
