"""A connection to fake-gcs-server that answers as GCS would: what the server lacks or does otherwise is made good here.

The gateway's handlers have one each. Standard library only."""

import http.client
import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPMessage
from urllib.parse import parse_qs, urlsplit

from fake_gcs import stand_ins
from fake_gcs.answers import Answer, error, whole
from fake_gcs.preconditions import Preconditions, subject
from fake_gcs.uploads import Reply, Uploads

HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "content-length",
    "expect",
}
_WHOLE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Asked:
    """A request: target is "path?query" with the object's name in the query if it is an upload's."""

    method: str
    target: str
    headers: HTTPMessage
    body: bytes
    base_url: str  # by which the client reached the gateway

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> str:
        return urlsplit(self.target).query


@dataclass(frozen=True)
class Shared:
    """What all connections to one server know together."""

    port: int
    uploads: Uploads = field(default_factory=Uploads)
    # between a precondition's check and its write
    writing: threading.Lock = field(default_factory=threading.Lock)
    # of clients that have left
    idle: list[http.client.HTTPConnection] = field(default_factory=list)


class Store:
    """One connection, kept alive; not safe between threads."""

    def __init__(self, shared: Shared):
        self.shared, self._is_clean = shared, False
        try:
            self.connection = shared.idle.pop()
        except IndexError:
            self.connection = http.client.HTTPConnection("127.0.0.1", shared.port)

    def leave(self) -> None:
        """The next client has the connection, where the last answer is known to be read to its end."""
        if self._is_clean:
            self.shared.idle.append(self.connection)
        else:
            self.connection.close()

    def close(self) -> None:
        """Forgets an answer that is not read to its end; the next request connects anew."""
        self.connection.close()

    def ask(self, asked: Asked) -> Answer:
        """The answer; its body, if it is a response, has to be read before the next request."""
        self._is_clean = False
        try:
            return self._answer(asked)
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(
                f"fake-gcs-server gave no answer to {asked.method} {asked.target}"
            ) from error

    def _answer(self, asked: Asked) -> Answer:
        if (given := stand_ins.stand_in(asked.method, asked.path)) is not None:
            return given
        if ignored := stand_ins.ignored(
            asked.query, asked.body if asked.path.startswith("/batch/") else b""
        ):
            return error(
                501,
                f"fake-gcs-server ignores {ignored} here, and the gateway does not make it good.",
            )
        upload_id = parse_qs(asked.query).get("upload_id")
        if asked.method == "PUT" and upload_id:
            return self._continue_upload(asked, upload_id[0])
        body = (
            stand_ins.with_content_ids(asked.body)
            if asked.path.startswith("/batch/")
            else asked.body
        )
        if asked.method in ("GET", "HEAD"):
            return self._checked(asked, body)
        with self.shared.writing:
            answer = self._checked(asked, body)
        if answer.status == 200 and "uploadType=resumable" in asked.query:
            self._note_upload(asked, answer)
        if asked.method == "DELETE" and answer.status == 200:
            return whole(b"", 204, ())  # the server says 200 and null
        return answer

    def _checked(self, asked: Asked, body: bytes) -> Answer:
        conditions, path = Preconditions.of(asked.query), subject(asked.path, asked.query)
        return self._refused(asked, conditions, path) or self._send(
            asked, asked.headers.items(), body
        )

    def _refused(self, asked: Asked, conditions: Preconditions, path: str | None) -> Answer | None:
        if not conditions or path is None:
            return None
        self.connection.request("GET", path)
        response = self.connection.getresponse()
        item = json.loads(response.read())
        generation = int(item["generation"]) if response.status == 200 else 0
        status = conditions.refusal(generation, reads=asked.method in ("GET", "HEAD"))
        if status is None:
            return None
        if status == 304:
            return whole(b"", 304, ())
        return error(
            status,
            f"A precondition does not hold: the object's generation is {generation} (0: no object).",
        )

    def _note_upload(self, asked: Asked, answer: Answer) -> None:
        location = next(value for name, value in answer.headers if name.lower() == "location")
        upload_id = parse_qs(urlsplit(location).query)["upload_id"][0]
        self.shared.uploads.begin(
            upload_id, Preconditions.of(asked.query), subject(asked.path, asked.query)
        )

    def _continue_upload(self, asked: Asked, upload_id: str) -> Answer:
        uploads = self.shared.uploads
        told = uploads.receive(upload_id, asked.headers.get("content-range"), asked.body)
        if isinstance(told, Reply):
            return whole(told.body, told.status, (("Range", told.range),) if told.range else ())
        headers = [
            (name, value)
            for name, value in asked.headers.items()
            if name.lower() != "content-range"
        ]
        if told.content_range:
            headers.append(("Content-Range", told.content_range))
        with self.shared.writing:
            conditions, path = uploads.terms(upload_id) if told.ends else (Preconditions(), None)
            answer = self._refused(asked, conditions, path) or self._send(asked, headers, told.body)
        assert isinstance(answer.body, bytes)  # the description of an object, or nothing
        uploads.taken(upload_id, told, answer.status, answer.body)
        return answer

    def _send(self, asked: Asked, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
        self.connection.putrequest(
            asked.method, asked.target, skip_host=True, skip_accept_encoding=True
        )
        for name, value in headers:
            # Go answers 501 to TensorFlow's "Transfer-Encoding: identity".
            if name.lower() not in HOP_BY_HOP:
                self.connection.putheader(name, value)
        self.connection.putheader("Content-Length", str(len(body)))
        self.connection.endheaders(body)
        response = self.connection.getresponse()
        kept = [
            _seen_by(asked, *header)
            for header in response.getheaders()
            if header[0].lower() not in HOP_BY_HOP
        ]
        if asked.method == "HEAD":
            response.read()
            return Answer(
                response.status, kept, b"", int(response.headers.get("content-length", 0))
            )
        if response.length is None or response.length <= _WHOLE_BYTES:  # None: chunked
            answer = whole(response.read(), response.status, tuple(kept))
            if response.status == 416:  # the server ends the connection after it, without a word
                self.connection.close()
            self._is_clean = True
            return answer
        return Answer(response.status, kept, response, response.length)


def _seen_by(asked: Asked, name: str, value: str) -> tuple[str, str]:
    """The header; an upload's Location is where the client came from, not the server's idea of its own address."""
    if name.lower() == "location":
        return name, re.sub(r"^https?://[^/]*", asked.base_url, value)
    return name, value
