"""The process of the server: moto's S3 behind what counts its requests and makes them fail. It ends with its stdin.

Buckets may lack conditional writes: where a name begins with "lax", conditions are ignored, where it begins with "old",
they are answered by 501."""

import contextlib
import ctypes
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import unquote
from xml.sax.saxutils import escape

from fake_gcs.faults import Fault, Faults, Reset, Short, Stall, Status
from moto.s3.models import FakeKey
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

HOST = ".s3.test"  # of virtual-hosted buckets
DIRECT = "HTTP_X_FAKE_S3_DIRECT"  # a test's own requests: neither struck nor counted
PIECE_BYTES = 1 << 17
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
ERRORS = {
    301: ("PermanentRedirect", "The bucket you are attempting to access must be addressed using the specified "
          "endpoint. Please send all future requests to this endpoint."),
    400: ("ExpiredToken", "The provided token has expired."),
    403: ("AccessDenied", "Access Denied"),
    404: ("NoSuchBucket", "The specified bucket does not exist"),
    409: ("ConditionalRequestConflict", "A conflicting operation occurred during this request."),
    412: ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold"),
    429: ("TooManyRequests", "Please reduce your request rate."),
    500: ("InternalError", "We encountered an internal error. Please try again."),
    501: ("NotImplemented", "A header you provided implies functionality that is not implemented"),
    503: ("SlowDown", "Please reduce your request rate."),
}  # fmt: skip


class Front:
    """A WSGI application before moto's. pace: seconds before an answer, and bytes per second of its body."""

    def __init__(self, pace: tuple[float, float] | None):
        self.moto = create_backend_app("s3")
        self.faults, self.log, self.pace = Faults(), [], pace
        self.writing = threading.Lock()
        self.resets = 0  # a stall ends when it changes

    def __call__(self, environ, start_response):
        environ["fake_s3.arrived"] = time.perf_counter()
        # The whole body before anything is done: a request whose client was killed half-way must never be done.
        body = _body(environ)
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if path.startswith("/_control/"):
            return self.control(path, body, start_response)
        host = environ.get("HTTP_HOST", "").split(":")[0]
        is_ours = host == "127.0.0.1" or host.endswith(HOST)  # others come as to a proxy
        if host.endswith(HOST):
            bucket = f"/{host.removesuffix(HOST)}"
            path = environ["PATH_INFO"] = bucket + path
            raw = environ["RAW_URI"].removeprefix("http://").removeprefix(environ["HTTP_HOST"])
            environ["RAW_URI"] = environ["REQUEST_URI"] = bucket + raw
        environ["HTTP_HOST"] = "127.0.0.1"
        line = unquote(f"{environ['REQUEST_METHOD']} {path}" + (f"?{query}" if query else ""))
        row = {"line": line, "host": host, "range": environ.get("HTTP_RANGE")}
        row |= {"signed": "HTTP_AUTHORIZATION" in environ, "received": len(body)}
        row |= {"status": None, "bytes": 0, "fault": ""}
        action = None if is_ours else Status(403)  # nothing leaves the machine
        if DIRECT not in environ:
            self.log.append(row)
            action = action or self.faults.strike(line)
            row["fault"] = "" if action is None else repr(action)
        return self.struck(action, row, environ, start_response)

    def struck(self, action, row, environ, start_response):
        """The answer, with what goes wrong. Short, and a Stall after a GET, come in the middle of the body."""
        if action and action.when == "before":
            self.suffer(action, environ)
        if isinstance(action, Status) and action.when == "before":
            status, headers, body = _error(action.code, environ, action.retry_after)
        else:
            status, headers, body = self.answer(environ)
        half = len(body) // 2
        stalls = isinstance(action, Stall) and environ["REQUEST_METHOD"] == "GET" and half
        if action and action.when == "after":
            if isinstance(action, Status):
                status, headers, body = _error(action.code, environ, action.retry_after)
            elif not stalls:
                self.suffer(action, environ)
        row["status"] = int(status.split()[0])
        row["bytes"] = half if isinstance(action, Short) else len(body)
        start_response(status, headers)
        if isinstance(action, Short):
            return _cut(body[:half], environ)
        if stalls and action.when == "after":
            return self.interrupted(body, half, action, environ)
        return self.paced(body, environ["fake_s3.arrived"]) if self.pace else [body]

    def suffer(self, action, environ) -> None:
        """Stalls or ends the connection. After a stall whose client has left, or that a reset ends, nothing is done."""
        connection = environ["werkzeug.socket"]
        if isinstance(action, Reset) or (
            isinstance(action, Stall) and not self.stalled(action, connection)
        ):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(connection.detach())  # close() would wait for the handler's files
            raise ConnectionResetError

    def stalled(self, action: Stall, connection: socket.socket) -> bool:
        resets, client = self.resets, select.poll()
        end = float("inf") if action.seconds is None else time.monotonic() + action.seconds
        client.register(connection, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            # A client that waits has nothing to say: what can be read is its end.
            if client.poll(1000 * min(0.05, left)) or self.resets != resets:
                return False
        return True

    def interrupted(self, body: bytes, half: int, action: Stall, environ) -> Iterator[bytes]:
        yield body[:half]
        if self.stalled(action, environ["werkzeug.socket"]):
            yield body[half:]
        else:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)

    def answer(self, environ) -> tuple[str, list, bytes]:
        conditions = {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"} & environ.keys()
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self.asked(environ)
        if environ["PATH_INFO"].startswith("/old") and conditions:
            return _error(501, environ)
        if environ["PATH_INFO"].startswith("/lax"):
            for name in conditions:
                del environ[name]
        with self.writing:  # moto looks whether a condition holds, and then writes
            return self.asked(environ)

    def asked(self, environ) -> tuple[str, list, bytes]:
        head = []
        data = self.moto(
            environ, lambda status, headers, error=None: head.extend((status, headers))
        )
        with contextlib.closing(data):
            body = b"".join(data)
        return head[0], head[1], body

    def paced(self, body: bytes, arrived: float) -> Iterator[bytes]:
        latency, rate = self.pace
        began = max(arrived + latency, time.perf_counter())
        for at in range(0, max(1, len(body)), PIECE_BYTES):
            piece = body[at : at + PIECE_BYTES]
            # A piece is there when its last byte is.
            time.sleep(max(0.0, began + (at + len(piece)) / rate - time.perf_counter()))
            yield piece

    def control(self, path, body, start_response):
        if path.endswith("/fault"):
            self.faults.add(Fault.from_json(body))
        elif path.endswith("/reset"):
            self.faults.clear()
            self.log.clear()
            self.resets += 1
        data = json.dumps(self.log if path.endswith("/log") else None).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        start_response("200 OK", headers)
        return [data]


def _keep_in_memory(key: FakeKey, data: bytes) -> None:
    """Sets an object's bytes. BytesIO shares them: a range costs what it returns, in moto it costs the entire object."""
    key._value_buffer, key.contentsize = io.BytesIO(data), len(data)


def _body(environ) -> bytes:
    chunked = environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked"
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read() if chunked else environ["wsgi.input"].read(size)
    if not chunked and len(body) < size:
        raise ConnectionError(f"the client left after {len(body)} of {size} bytes")
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    return body


def _error(code: int, environ, retry_after: int | None = None) -> tuple[str, list, bytes]:
    """An error as S3 gives it; of a HEAD, the status only."""
    name, message = ERRORS.get(code, (f"Error{code}", "An error that a test asked for."))
    resource = escape(environ["PATH_INFO"])
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{name}</Code><Message>{message}</Message>'
    body += f"<Resource>{resource}</Resource><RequestId>4442587FB7D0A2F9</RequestId></Error>"
    data = b"" if environ["REQUEST_METHOD"] == "HEAD" else body.encode()
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))]
    headers.append(("x-amz-request-id", "4442587FB7D0A2F9"))
    if code == 301:
        headers.append(("x-amz-bucket-region", "eu-central-1"))
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return f"{code} {HTTPStatus(code).phrase}", headers, data


def _cut(body: bytes, environ) -> Iterator[bytes]:
    yield body
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log(self, *args) -> None:
        pass

    def connection_dropped(self, error, environ=None) -> None:
        self.close_connection = True


def main() -> None:
    # Also where a child that the test has forked holds the pipe open.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    pace = os.environ.get("FAKE_S3_PACE")
    front = Front(tuple(map(float, pace.split(","))) if pace else None)
    FakeKey.value = property(lambda key: key._value_buffer.getvalue(), _keep_in_memory)
    server = make_server("127.0.0.1", 0, front, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
