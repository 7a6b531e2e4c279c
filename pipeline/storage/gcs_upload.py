"""Uploads one object: a small one in one request, a large one as a resumable upload.

A concurrent upload of the same bytes is no error: bytes do not depend on which worker writes
them."""

import base64
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import google_crc32c

from pipeline.errors import StorageError
from pipeline.storage import gcs_calls
from pipeline.storage.gcs_ranges import find_blob
from pipeline.storage.waiting import waiting

PIECE_BYTES = 8 * 1024**2


class Upload:
    """A sink. The object becomes visible with `finish`, and never after `abort`."""

    def __init__(self, blob: Any, path: str) -> None:
        self._blob = blob
        self._path = path
        self._head = bytearray()
        self._writer: Any = None
        self._size = 0
        self._checksum = google_crc32c.Checksum()
        self._failures = list[Exception]()
        # The object was written by someone else, or may not be replaced. From then on, only the
        # checksum is computed.
        self._refused = False
        self._replaces = False
        self._forbidden: StorageError | None = None

    def write(self, data: bytes, /) -> int:
        """Appends `data` and sends complete pieces."""
        self._size += len(data)
        self._checksum.update(bytes(data))
        if self._writer is None and len(self._head) + len(data) <= PIECE_BYTES:
            self._head += data
            return len(data)
        if self._writer is None:
            self._writer = self._open()
            data = bytes(self._head) + bytes(data)
            self._head = bytearray()
        self._refused = self._refused or not self._sent(lambda: self._writer.write(data))
        return len(data)

    def finish(self) -> None:
        """Makes the object visible. Raises StorageError unless the bucket then has exactly these
        bytes."""
        small = self._writer is None
        taken = self._put(0) if small else not self._refused and self._sent(self._writer.close)
        if not taken:
            self.abort()
        # after one request, the blob has its response
        blob = self._blob if small and taken else find_blob(self._path)
        if small and not taken and not self._is_mine(blob):
            taken = self._put(blob.generation if blob else 0)
            blob = self._blob if taken else find_blob(self._path)
        if self._is_mine(blob):
            return
        if self._forbidden:
            raise self._forbidden
        if not taken:
            raise StorageError(
                f"{self._path} was written by someone else, with other bytes, during the upload. "
                "Stop the other conversion and run the same command again."
            )
        raise StorageError(
            f"{self._path} does not hold the bytes that were uploaded. Run the same command again."
        )

    def abort(self) -> None:
        """Cancels the upload. Never fails: the bucket drops an unfinished upload after a week."""
        if self._writer is not None:
            with contextlib.suppress(*gcs_calls.LOST):
                self._writer.terminate()
            # otherwise the writer sends the rest when garbage-collected
            self._writer._buffer.close()
            self._writer = None

    def _open(self) -> Any:
        # Streamed bytes cannot be sent again, so the existing object is checked first.
        blob = find_blob(self._path)
        self._replaces = blob is not None
        return self._blob.open(
            "wb",
            chunk_size=PIECE_BYTES,
            if_generation_match=blob.generation if blob else 0,
            timeout=gcs_calls.TIMEOUT_SECONDS,
            retry=gcs_calls.retrying(self._failures.append),
            ignore_flush=True,
        )

    def _put(self, generation: int) -> bool:
        """Sends the object in one request. False if the bucket's has another generation."""
        send = functools.partial(
            self._blob.upload_from_string,
            bytes(self._head),
            if_generation_match=generation,
            timeout=gcs_calls.TIMEOUT_SECONDS,
            retry=None,
        )
        try:
            gcs_calls.call(self._path, "write", send)
        except gcs_calls.PreconditionFailed:
            return False
        return True

    def _sent(self, send: Callable[[], object]) -> bool:
        """Sends a piece. False if the bucket's object has another generation or may not be
        replaced."""
        try:
            with waiting(f"write {self._path}", self._failures):
                send()
        except Exception as error:
            if gcs_calls.status_of(error) == 412:  # the client has two exceptions for it
                return False
            failure = gcs_calls.named(self._path, "write", error, len(self._failures) + 1)
            if gcs_calls.status_of(error) != 403 or not self._replaces:
                raise failure from error
            # For example a retention policy. If the object has exactly these bytes, nothing needs
            # replacing.
            self._forbidden = failure
            return False
        return True

    def _is_mine(self, blob: Any) -> bool:
        checksum = base64.b64encode(self._checksum.digest()).decode()
        return blob is not None and (int(blob.size), blob.crc32c) == (self._size, checksum)
