"""One new object: small ones in one request, large ones as a resumable upload, and what happens if it is there already.

A twin that writes the same bytes at the same time is no error: bytes here do not depend on who writes them."""

import base64
import contextlib
from typing import Any

import google_crc32c

from pipeline.shards.errors import StorageError
from pipeline.shards.gcs_calls import (
    TIMEOUT_SECONDS,
    MissingError,
    PreconditionFailed,
    call,
    named,
    retrying,
    status_of,
)

__all__ = ["Upload"]

PIECE_BYTES = 8 * 1024**2


class Upload:
    """A sink. Nothing is visible before `finish`; after `abort` nothing will be."""

    def __init__(self, blob: Any, path: str) -> None:
        self._blob, self._path = blob, path
        self._head = bytearray()
        self._writer: Any = None
        self._size, self._checksum = 0, google_crc32c.Checksum()
        self._failures: list[Exception] = []

    def write(self, data: bytes, /) -> int:
        """Appends `data`; sends what fills a piece."""
        self._size += len(data)
        self._checksum.update(bytes(data))
        if self._writer is None and len(self._head) + len(data) <= PIECE_BYTES:
            self._head += data
            return len(data)
        if self._writer is None:
            self._writer = self._open()
            data, self._head = bytes(self._head) + bytes(data), bytearray()
        self._sending(lambda: self._writer.write(data))
        return len(data)

    def finish(self) -> None:
        """Makes the object visible, and proves that the bucket holds these very bytes. StorageError if not."""
        whole = self._writer is None
        try:
            if whole:
                self._put(0)
            else:
                self._sending(self._writer.close)
        except PreconditionFailed:
            found = self._found()
            if self._is_mine(found):
                return
            if not whole:
                raise StorageError(
                    f"{self._path} was written by someone else, with other bytes, while it was uploaded. "
                    "Stop the other command and run this one again."
                ) from None
            whole = False
            with contextlib.suppress(PreconditionFailed):  # of an attempt whose answer was lost, or of a twin's
                self._put(found.generation if found else 0)
        # After a request that wrote it whole, the blob holds what the answer said.
        if not self._is_mine(self._blob if whole else self._found()):
            raise StorageError(f"{self._path} does not hold the bytes that were uploaded. Run the same command again.")

    def abort(self) -> None:
        """Gives the upload up."""
        if self._writer is not None:
            self._writer.terminate()

    def _open(self) -> Any:
        # Streamed bytes cannot be sent again, so what is there is looked at before, not after.
        found = self._found()
        generation = found.generation if found else 0
        return self._blob.open(
            "wb",
            chunk_size=PIECE_BYTES,
            if_generation_match=generation,
            timeout=TIMEOUT_SECONDS,
            retry=retrying(self._failures.append),
            ignore_flush=True,
        )

    def _put(self, generation: int) -> None:
        data = bytes(self._head)
        options = {"if_generation_match": generation, "timeout": TIMEOUT_SECONDS, "retry": None}
        call(self._path, "write", lambda: self._blob.upload_from_string(data, **options))

    def _sending(self, send: Any) -> None:
        try:
            send()
        except PreconditionFailed:
            raise
        except Exception as error:
            if status_of(error) == 412:  # the client's upload code has an exception of its own for it
                raise PreconditionFailed(str(error)) from error
            raise named(self._path, "write", error, len(self._failures) + 1) from error

    def _found(self) -> Any:
        # A blob of its own: one that has been looked at stands for that generation from then on.
        blob = self._blob.bucket.blob(self._blob.name)
        try:
            call(self._path, "find", lambda: blob.reload(timeout=TIMEOUT_SECONDS, retry=None))
        except MissingError:
            return None
        return blob

    def _is_mine(self, blob: Any) -> bool:
        mine = base64.b64encode(self._checksum.digest()).decode()
        return blob is not None and (int(blob.size), blob.crc32c) == (self._size, mine)
