"""Serves the directories of a directory as S3 buckets that are slow the way real ones are.

    python -m benchmarks.slow_bucket DIR [--streams 4] [--latency_ms 30] [--rate_mb 40]

Each response takes latency_ms to its first byte, then arrives at rate_mb a second. At most `streams` responses are under
way, latency included; other requests wait for their turn in the order of their arrival. Path-style GET with Range, HEAD
and ListObjectsV2, and the GET of Google's JSON API; signatures are ignored. Prints its port. GET /_count returns, as JSON, since the last such request: the
requests for objects and their bytes, and the CPU seconds of this process. Standard library only."""

import argparse
import json
import os
import re
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

SLICE_BYTES = 128 * 1024  # every 3 ms at 40 MB/s
REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 416: "Range Not Satisfiable"}


class Turns:
    """At most `count` holders, first come, first served. threading.Semaphore lets newcomers pass those who wait."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: list[threading.Lock] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.pop(0).release()
            else:
                self._free += 1


class Pace(NamedTuple):
    """How slow a stream is."""

    latency_seconds: float
    bytes_per_second: float


class Server(socketserver.ThreadingTCPServer):
    """The buckets of a directory."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 256

    def __init__(self, directory: Path, streams: int, pace: Pace) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.pace, self.turns = directory, pace, Turns(streams)
        self.requests = self.bytes = 0
        self.cpu_seconds = time.process_time()
        self.lock = threading.Lock()

    def counts(self) -> bytes:
        """Since the last call, as JSON."""
        with self.lock:
            now = time.process_time()
            counted = {
                "requests": self.requests,
                "bytes": self.bytes,
                "cpu_seconds": now - self.cpu_seconds,
            }
            self.requests, self.bytes, self.cpu_seconds = 0, 0, now
        return json.dumps(counted).encode()


class Handler(socketserver.StreamRequestHandler):
    """One connection. http.server takes 0.2 ms more per request."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while request := self.rfile.readline(65537).decode("latin-1").split():
            headers = {}
            while line := self.rfile.readline(65537).strip().decode("latin-1"):
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            method, target, *_ = request
            try:
                self.answer(method, urlsplit(target), headers)
            except ConnectionError:
                return

    def answer(self, method: str, target: SplitResult, headers: dict[str, str]) -> None:
        """Answers one request."""
        path, query = unquote(target.path), parse_qs(target.query, keep_blank_values=True)
        if path == "/_count":
            self.send(200, self.server.counts())
            return
        if google := re.fullmatch(r"/download/storage/v1/b/([^/]+)/o/(.+)", path):
            path = f"/{google[1]}/{google[2]}"
        bucket, _, key = path.lstrip("/").partition("/")
        with self.server.turns:
            begin = time.perf_counter()
            if not key:
                time.sleep(self.server.pace.latency_seconds)
                self.send(200, listing(self.server.directory / bucket, bucket, query))
            else:
                self.send_object(method, self.server.directory / bucket / key, headers, begin)

    def send_object(self, method: str, path: Path, headers: dict[str, str], begin: float) -> None:
        """Sends an object, or a range of it, at the pace of a stream."""
        pace = self.server.pace
        due = begin + pace.latency_seconds
        if not path.is_file():
            sleep_until(due)
            self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        total = path.stat().st_size
        first, last = 0, total - 1
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", "")):
            first = int(asked[1]) if asked[1] else total - int(asked[2])
            last = min(int(asked[2]), last) if asked[1] and asked[2] else last
        if first > last:
            sleep_until(due)
            self.send(416, b"<Error><Code>InvalidRange</Code></Error>")
            return
        size = last - first + 1
        modified = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(path.stat().st_mtime))
        more = {
            "ETag": etag(path),
            "Last-Modified": modified,
            "Accept-Ranges": "bytes",
            "Content-Range": f"bytes {first}-{last}/{total}" if asked else None,
        }
        sleep_until(due)
        self.head(206 if asked else 200, size, more)
        with self.server.lock:
            self.server.requests += 1
            self.server.bytes += 0 if method == "HEAD" else size
        if method == "HEAD":
            return
        file = os.open(path, os.O_RDONLY)
        try:
            for offset in range(0, size, SLICE_BYTES):
                end = min(offset + SLICE_BYTES, size)
                sleep_until(due + end / pace.bytes_per_second)  # when its last byte would be here
                self.send_file(file, first + offset, end - offset)
        finally:
            os.close(file)

    def send_file(self, file: int, offset: int, size: int) -> None:
        """Sends a slice of a file, without copying it into this process."""
        while size:
            sent = os.sendfile(self.connection.fileno(), file, offset, size)
            offset, size = offset + sent, size - sent

    def head(self, status: int, size: int, more: dict[str, str | None]) -> None:
        """Sends the head of a response."""
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {size}"]
        lines += [f"{name}: {value}" for name, value in more.items() if value]
        self.connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())

    def send(self, status: int, body: bytes) -> None:
        """Sends a small response."""
        self.head(status, len(body), {"Content-Type": "application/xml"})
        self.connection.sendall(body)


def sleep_until(due: float) -> None:
    """Returns at that time of perf_counter."""
    if (seconds := due - time.perf_counter()) > 0:
        time.sleep(seconds)


def etag(path: Path) -> str:
    """One that changes with the file."""
    return f'"{path.stat().st_mtime_ns:x}-{path.stat().st_size:x}"'


def listing(directory: Path, bucket: str, query: dict[str, list[str]]) -> bytes:
    """ListObjectsV2, on one page."""
    prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
    after = query.get("start-after", [""])[0]
    paths = {str(each.relative_to(directory)): each for each in directory.rglob("*")}
    keys = {
        key: path
        for key, path in sorted(paths.items())
        if path.is_file() and key.startswith(prefix) and key > after
    }
    lines, prefixes = [], {}
    for key, path in keys.items():
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            prefixes[prefix + rest.split(delimiter)[0] + delimiter] = None
            continue
        stat = path.stat()
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
        lines.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
            f"<ETag>{escape(etag(path))}</ETag><Size>{stat.st_size}</Size></Contents>"
        )
    lines += [
        f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes
    ]
    count = f"<KeyCount>{len(lines)}</KeyCount><MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>"
    head = f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>{count}"
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    return (
        f'<ListBucketResult xmlns="{namespace}">{head}{"".join(lines)}</ListBucketResult>'.encode()
    )


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--latency_ms", type=float, default=30)
    parser.add_argument("--rate_mb", type=float, default=40)
    options = parser.parse_args()
    sys.setswitchinterval(0.001)  # a stream that is due waits for others no longer than this
    pace = Pace(options.latency_ms / 1e3, options.rate_mb * 1e6)
    server = Server(options.directory, options.streams, pace)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
