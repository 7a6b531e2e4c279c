"""The process: Dataflow's REST calls that a launcher makes, on a free port of 127.0.0.1. Standard library only.

A job walks through the ordered states, one at each question, and stays in the last."""

import json
import re
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_PATH = re.compile(
    r"/v1b3/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/jobs(?:/(?P<id>[^/]+))?(?P<of>/\w+)?"
)


@dataclass
class Orders:
    """What the next job is to be, and what was asked so far."""

    # of "GET", "POST", "PUT": status and message
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["JOB_STATE_PENDING", "JOB_STATE_RUNNING"])
    messages: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    job: dict[str, Any] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)


MOST_BYTES = 20_000_000  # as the service: https://cloud.google.com/dataflow/quotas
TOO_LARGE = "The job graph is too large. Please try again with a smaller job graph."


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    orders = Orders()
    lock = threading.Lock()

    def log_message(self, format, *args):
        """The orders hold a log."""

    def serve(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lock:
            status, answer = self.answer(urlsplit(self.path).path, json.loads(sent or b"null"))
        if len(sent) > MOST_BYTES:
            status, answer = (
                400,
                {"error": {"code": 400, "message": TOO_LARGE, "status": "INVALID"}},
            )
        data = json.dumps(answer).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = serve  # noqa: N815

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/_stub/orders":
            Handler.orders = Orders(**body)
            return 200, {}
        if path == "/_stub/changes":  # of a job that is there already
            vars(self.orders).update(body)
            return 200, {}
        if path == "/_stub/requests":
            return 200, self.orders.requests
        asked = {"method": self.command, "path": self.path, "body": body}
        self.orders.requests.append({**asked, "authorization": self.headers.get("Authorization")})
        if self.command in self.orders.refusals:
            code, message = self.orders.refusals[self.command]
            return code, {"error": {"code": code, "message": message, "status": "REFUSED"}}
        found = _PATH.fullmatch(path)
        return (
            self.of_jobs(found, body)
            if found
            else (404, {"error": {"code": 404, "message": f"no {path}"}})
        )

    def of_jobs(self, found: re.Match, body: Any) -> tuple[int, Any]:
        orders = self.orders
        match self.command, found["id"], found["of"]:
            case "GET", None, None:
                return 200, {"jobs": []}
            case "POST", None, None:
                place = {
                    "id": "2026-01-02_03_04_05-678",
                    "projectId": found["project"],
                    "location": found["region"],
                }
                orders.job = {**body, **place, "currentState": "JOB_STATE_PENDING"}
                return 200, orders.job
            case "PUT", _, None:
                orders.states = [body["requestedState"]]
                return 200, orders.job
            case "GET", _, "/messages":
                return 200, {"jobMessages": orders.messages}
            case "GET", _, "/metrics":
                return 200, {"metrics": orders.metrics}
        orders.job["currentState"] = (
            orders.states.pop(0) if len(orders.states) > 1 else orders.states[0]
        )
        return 200, orders.job


def main() -> None:
    """Serves until stdin ends, as it also does when the process that started this one is killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
