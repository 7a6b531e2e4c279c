"""Resumable uploads that survive a lost answer. Standard library only.

fake-gcs-server 1.54 appends a chunk that is sent again, takes the question for the state (Content-Range: bytes */*) for
the end of the upload, and has forgotten an upload that is complete. GCS does none of this, and every client that
retries relies on it: https://cloud.google.com/storage/docs/performing-resumable-uploads#status-check."""

import re
import threading
from dataclasses import dataclass, field

from fake_gcs.preconditions import Preconditions

_CHUNK = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_QUESTION = re.compile(r"bytes \*/(\d+|\*)")


@dataclass(frozen=True)
class Reply:
    """What the client hears without the server being asked."""

    status: int
    range: str | None = None
    body: bytes = b""


@dataclass(frozen=True)
class Chunk:
    """What the server is still to be told; `persisted` bytes are there once it has taken it."""

    body: bytes
    content_range: str | None
    persisted: int
    ends: bool


@dataclass
class _Upload:
    conditions: Preconditions
    subject: str | None
    persisted: int = 0
    finished: bytes | None = None  # the body of the last answer: the object


@dataclass
class Uploads:
    """The uploads under way and those complete, by upload_id. An upload is one client's: its PUTs come one by one."""

    uploads: dict[str, _Upload] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, upload_id: str, conditions: Preconditions, subject: str | None) -> None:
        with self.lock:
            self.uploads[upload_id] = _Upload(conditions, subject)

    def terms(self, upload_id: str) -> tuple[Preconditions, str | None]:
        """What has to hold of which object when the upload ends; GCS looks when it begins and when it ends."""
        upload = self.uploads[upload_id]
        return upload.conditions, upload.subject

    def receive(self, upload_id: str, content_range: str | None, body: bytes) -> Reply | Chunk:
        """What becomes of a PUT: the part of it that is new, or an answer when nothing is."""
        upload = self.uploads.get(upload_id)
        if upload is None:
            return Reply(404, body=b"no such upload")
        if upload.finished is not None:
            return Reply(200, body=upload.finished)
        if question := _QUESTION.fullmatch(content_range or ""):
            ends = question.group(1) == str(upload.persisted)
            return Chunk(b"", content_range, upload.persisted, ends) if ends else _so_far(upload)
        chunk = _CHUNK.fullmatch(content_range or "")
        if chunk is None:
            return Chunk(body, content_range, len(body), ends=True)
        first, last, total = int(chunk.group(1)), int(chunk.group(2)), chunk.group(3)
        if first > upload.persisted:
            return Reply(
                503,
                body=f"offset {first} is beyond the {upload.persisted} bytes that are there".encode(),
            )
        if last < upload.persisted:
            return _so_far(upload)
        content_range = f"bytes {upload.persisted}-{last}/{total}"
        return Chunk(
            body[upload.persisted - first :], content_range, last + 1, ends=str(last + 1) == total
        )

    def taken(self, upload_id: str, chunk: Chunk, status: int, body: bytes) -> None:
        """The server's answer to a chunk."""
        upload = self.uploads[upload_id]
        if status == 200:
            upload.finished = body
        elif status == 308:
            upload.persisted = chunk.persisted


def _so_far(upload: _Upload) -> Reply:
    return Reply(308, f"bytes=0-{upload.persisted - 1}" if upload.persisted else None)
