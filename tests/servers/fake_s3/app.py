"""The process of the server: moto's S3 behind what counts its requests and makes them fail. It ends with its stdin."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import unquote

from fake_gcs.faults import Fault, Faults, Reset, Short, Stall, Status
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

HOST = ".s3.test"  # of virtual-hosted buckets
CODES = {
    301: "PermanentRedirect",
    400: "ExpiredToken",
    403: "AccessDenied",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


class Front:
    """A WSGI application before moto's. A bucket whose name begins with "lax" ignores conditions of writes."""

    def __init__(self, pace: tuple[float, float] | None):
        self.moto = create_backend_app("s3")
        self.faults, self.log, self.pace = Faults(), [], pace
        self.writing, self.over = threading.Lock(), threading.Event()

    def __call__(self, environ, start_response):
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if path.startswith("/_control/"):
            return self.control(path, environ, start_response)
        host = environ.get("HTTP_HOST", "").split(":")[0]
        if host.endswith(HOST):
            path = environ["PATH_INFO"] = f"/{host.removesuffix(HOST)}{path}"
            environ["RAW_URI"] = environ["REQUEST_URI"] = path
        environ["HTTP_HOST"] = "127.0.0.1"
        line = unquote(f"{environ['REQUEST_METHOD']} {path}" + (f"?{query}" if query else ""))
        request = {"line": line, "host": host, "range": environ.get("HTTP_RANGE"), "bytes": 0}
        request["signed"] = "HTTP_AUTHORIZATION" in environ
        self.log.append(request)
        action = self.faults.strike(line)
        return self.struck(action, request, environ, start_response)

    def struck(self, action, request, environ, start_response):
        if action is None or action.when == "before":
            if isinstance(action, Status):
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                return _error(action.code, environ, start_response)
            if isinstance(action, Reset):
                return _reset(environ)
            if isinstance(action, Stall):
                self.over.wait(action.seconds)
        status, headers, body = self.answer(environ)
        if isinstance(action, Status) and action.when == "after":
            return _error(action.code, environ, start_response)
        if isinstance(action, Reset):
            return _reset(environ)
        if isinstance(action, Stall) and action.when == "after":
            self.over.wait(action.seconds)
        request["status"], request["bytes"] = status, len(body)
        start_response(status, headers)
        if isinstance(action, Short):
            return _cut(body[: len(body) // 2], environ)
        return self.paced(body)

    def answer(self, environ):
        got = {}

        def start_response(status, headers, exc_info=None):
            got.update(status=status, headers=headers)

        if environ["PATH_INFO"].startswith("/lax"):
            environ.pop("HTTP_IF_NONE_MATCH", None), environ.pop("HTTP_IF_MATCH", None)
        conditional = environ["REQUEST_METHOD"] == "PUT" and (
            "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ
        )
        if conditional:  # moto looks, and then writes
            with self.writing:
                body = b"".join(self.moto(environ, start_response))
        else:
            body = b"".join(self.moto(environ, start_response))
        return got["status"], got["headers"], body

    def paced(self, body: bytes) -> Iterator[bytes]:
        if not self.pace:
            yield body
            return
        latency, rate = self.pace
        began = time.perf_counter() + latency
        for at in range(0, max(1, len(body)), 1 << 17):
            time.sleep(max(0.0, began + at / rate - time.perf_counter()))
            yield body[at : at + (1 << 17)]

    def control(self, path, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if path.endswith("/fault"):
            self.faults.add(Fault.from_json(body))
        elif path.endswith("/reset"):
            self.faults.clear()
            self.log.clear()
            self.over.set()
            self.over = threading.Event()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self.log if path.endswith("/log") else None).encode()]


def _error(code: int, environ, start_response):
    name = CODES.get(code, "Error")
    body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>asked for</Message></Error>"
    data = b"" if environ["REQUEST_METHOD"] == "HEAD" else body.encode()
    start_response(
        f"{code} {name}", [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))]
    )
    return [data]


def _reset(environ):
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def _cut(body: bytes, environ) -> Iterator[bytes]:
    yield body
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *args) -> None:
        pass


def main() -> None:
    pace = os.environ.get("FAKE_S3_PACE")
    front = Front(tuple(map(float, pace.split(","))) if pace else None)
    server = make_server("127.0.0.1", 0, front, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
