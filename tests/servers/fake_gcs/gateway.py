"""The process before fake-gcs-server: one port of 127.0.0.1 that every GCS client reaches, and where tests do harm.

Serves plain HTTP, HTTPS after CONNECT to *.googleapis.com, a metadata server, and orders under /_gateway/. Any other
host is refused, so nothing leaves the machine. fake_gcs.server starts it with -S: standard library only.
A process of its own: a proxy thread in the test's process deadlocks with TensorFlow, whose flush holds the GIL."""

import contextlib
import json
import select
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from fake_gcs import backend, stand_ins
from fake_gcs.answers import Answer, error
from fake_gcs.control import PREFIX, Orders
from fake_gcs.faults import Action, Reset, Short, Stall
from fake_gcs.log import Entry
from fake_gcs.store import Asked, Shared, Store

_PIECE_BYTES = 256 * 1024


class Handler(BaseHTTPRequestHandler):
    """One client's connection, kept alive; it holds one connection to the server, kept alive too."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    scheme = "http"

    def setup(self):
        super().setup()
        assert isinstance(self.server, Gateway)
        self.gateway = self.server
        self.store = Store(self.gateway.shared)

    def finish(self):
        self.store.leave()
        with contextlib.suppress(OSError):
            super().finish()
        self.connection.close()

    def log_message(self, format, *args):
        """The gateway has a log of its own."""

    def do_CONNECT(self):
        host = self.path.rsplit(":", 1)[0]
        if not host.endswith(".googleapis.com"):
            self.refuse(host)
            return
        self.send_response_only(200)
        self.end_headers()
        self.rfile.close()
        self.request = self.gateway.tls.wrap_socket(self.connection, server_side=True)
        super().setup()
        self.scheme = "https"
        self.close_connection = False

    def serve(self):
        url = urlsplit(self.path)
        if url.netloc and not self.is_ours(url.netloc):  # a plain proxy's request
            self.refuse(url.netloc)
            return
        self.path = url._replace(scheme="", netloc="").geturl() or "/"
        body = self.read_body()
        target = stand_ins.with_name(self.path, body)
        entry = Entry(self.command, target, self.headers, self.scheme, len(body))
        if url.path.startswith(PREFIX):
            self.send(self.gateway.orders.answer(self.command, url.path, body), entry)
            return
        self.gateway.orders.log.add(entry)
        action = self.gateway.orders.faults.strike(entry.request.line)
        entry.struck("" if action is None else repr(action))
        if action and action.when == "before" and not self.suffer(action, entry):
            return
        base_url = f"{self.scheme}://{self.headers.get('host')}"
        answer = self.store.ask(Asked(self.command, target, self.headers, body, base_url))
        if action and action.when == "after" and not self.suffer(action, entry):
            return
        self.send(answer, entry, cut=isinstance(action, Short))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = serve  # noqa: N815

    def is_ours(self, netloc: str) -> bool:
        own = f"127.0.0.1:{self.gateway.server_address[1]}"
        return netloc == own or netloc.split(":")[0].endswith(".googleapis.com")

    def refuse(self, host: str):
        entry = self.gateway.orders.log.add(
            Entry(self.command, self.path, self.headers, self.scheme)
        )
        self.close_connection = True
        self.send(
            error(
                403,
                f"The gateway refuses {host}: it serves *.googleapis.com, and nothing leaves it.",
            ),
            entry,
        )

    def read_body(self) -> bytes:
        """The whole body before anything is done: a request whose client was killed half-way must never be done."""
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.read_exactly(int(self.headers.get("content-length", 0)))
        pieces = []
        while size := self.chunk_size():
            pieces.append(self.read_exactly(size + 2)[:-2])
        self.read_exactly(2)
        return b"".join(pieces)

    def chunk_size(self) -> int:
        line = self.rfile.readline()
        if not line:
            raise ConnectionError("the client left between two chunks")
        return int(line.split(b";")[0], 16)

    def read_exactly(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionError(f"the client left after {len(data)} of {size} bytes")
        return data

    def suffer(self, action: Action, entry: Entry) -> bool:
        """Does the harm; True if the request goes on afterwards."""
        match action:
            case Short():
                return True
            case Stall(seconds):
                return self.stall(seconds)
            case Reset():
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
                self.close_connection = True
                return False
        self.store.close()
        answer = error(action.code, f"injected: {action}")
        if action.retry_after is not None:
            answer.headers.append(("Retry-After", str(action.retry_after)))
        self.send(answer, entry)
        return False

    def stall(self, seconds: float | None) -> bool:
        orders = self.gateway.orders
        resets, end = orders.resets, float("inf") if seconds is None else time.monotonic() + seconds
        client = select.poll()
        client.register(self.connection, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            # A client that waits has nothing to say: what can be read is its end.
            if client.poll(1000 * min(0.05, left)) or orders.resets != resets:
                self.close_connection = True
                return False
        return True

    def send(self, answer: Answer, entry: Entry, *, cut: bool = False):
        """Sends the answer; with `cut`, only half of the body that its head announces."""
        self.close_connection = self.close_connection or cut
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(answer.length))
        if self.close_connection:
            self.send_header("Connection", "close")
        entry.answered(answer.status)
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(answer, answer.length // 2 if cut else answer.length, entry)

    def send_body(self, answer: Answer, length: int, entry: Entry):
        sent = 0
        while sent < length:
            if isinstance(answer.body, bytes):
                piece = answer.body[sent : min(length, sent + _PIECE_BYTES)]
            else:
                piece = answer.body.read1(min(_PIECE_BYTES, length - sent))
                if not piece:
                    raise RuntimeError(
                        f"fake-gcs-server ended after {sent} of {length} bytes of {self.path}"
                    )
            sent += len(piece)
            entry.sent(len(piece))
            self.wfile.write(piece)
        if length == answer.length and not isinstance(answer.body, bytes):
            answer.body.read()  # nothing: but http.client takes no new request before


class Gateway(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128
    shared: Shared
    tls: ssl.SSLContext

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.orders = Orders()

    def handle_error(self, request, client_address):
        """A client may leave at any moment; anything else ends the test (see fake_gcs.server.start)."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def main(binary: str, directory: Path) -> None:
    """Serves until stdin ends, as it also does when the process that started this one is killed."""
    with Gateway() as gateway:
        port = gateway.server_address[1]
        gateway.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        gateway.tls.load_cert_chain(directory / "cert.pem", directory / "key.pem")
        process, backend_port = backend.start(
            binary, f"http://127.0.0.1:{port}", directory / "fake-gcs-server.log"
        )
        gateway.shared = Shared(backend_port)
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        print(
            json.dumps({"port": port, "backend_port": backend_port, "backend_pid": process.pid}),
            flush=True,
        )
        sys.stdin.read()
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
