"""The gateway's list of requests: written by its threads, read by tests as frozen Requests.

No header is kept but those named here, and of Authorization only whether there was one. Standard library only."""

import threading
import time
from dataclasses import dataclass, field, replace
from http.client import HTTPMessage
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """One request as the gateway saw it. Bytes are those of bodies as sent; seconds are from its arrival, by the
    gateway's clock, to its end.

    status None: no answer yet, or none at all (reset, stall). fault: what the gateway did to it, "" for nothing."""

    method: str
    path: str
    query: str
    scheme: str
    host: str
    range: str | None
    content_range: str | None
    if_generation_match: int | None
    authorization: bool
    request_bytes: int
    response_bytes: int
    status: int | None
    started: float
    seconds: float
    fault: str

    @property
    def line(self) -> str:
        """What patterns are matched with: "METHOD path?query", %-decoded. An upload's name is always in the query."""
        return unquote(
            f"{self.method} {self.path}?{self.query}"
            if self.query
            else f"{self.method} {self.path}"
        )


class Entry:
    """A request under way. It keeps no header but those that a Request tells of: a token must not live here."""

    def __init__(
        self, method: str, target: str, headers: HTTPMessage, scheme: str, request_bytes: int = 0
    ):
        own = target.startswith("/")  # else another host was asked for
        url = urlsplit(target)
        generation = parse_qs(url.query).get("ifGenerationMatch", [None])[0]
        self.started = time.monotonic()
        self._request = Request(
            method=method,
            path=url.path if own else target,
            query=url.query if own else "",
            scheme=scheme,
            host=headers.get("host") or "",
            range=headers.get("range"),
            content_range=headers.get("content-range"),
            if_generation_match=None if generation is None else int(generation),
            authorization="authorization" in headers,
            request_bytes=request_bytes,
            response_bytes=0,
            status=None,
            started=self.started,
            seconds=0.0,
            fault="",
        )

    @property
    def request(self) -> Request:
        return self._request

    def struck(self, fault: str) -> None:
        self._request = replace(self._request, fault=fault)

    def answered(self, status: int) -> None:
        self._request = replace(
            self._request, status=status, seconds=time.monotonic() - self.started
        )

    def sent(self, count: int) -> None:
        """Counts bytes of the answer. Called before they leave: a client that has them all finds them all counted."""
        total = self._request.response_bytes + count
        self._request = replace(
            self._request, response_bytes=total, seconds=time.monotonic() - self.started
        )


@dataclass
class Log:
    """Entries in the order in which their heads arrived. Safe between threads."""

    entries: list[Entry] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Entry) -> Entry:
        with self.lock:
            self.entries.append(entry)
        return entry

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()

    def rows(self) -> list[dict]:
        """Every request as a dict of JSON values: Request(**row)."""
        with self.lock:
            entries = list(self.entries)
        return [vars(entry.request) for entry in entries]
