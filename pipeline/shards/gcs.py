"""Storage in Google Cloud Storage: objects appear whole or not at all, so shards are written to their final names.

Reads are ranged and run ahead of the reader, bounded in requests and bytes. Any thread may use it."""

import base64
import contextlib
import io
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, cast

from pipeline.shards.errors import StorageError
from pipeline.shards.gcs_calls import (
    TIMEOUT_SECONDS,
    MissingError,
    NotFound,
    PreconditionFailed,
    ShortBody,
    call,
    client,
)
from pipeline.shards.gcs_upload import Upload
from pipeline.shards.storage import Sink, Stat

__all__ = ["GcsStorage"]

REQUESTS_AHEAD = 32
BYTES_AHEAD = 64 * 1024**2
_LISTED_FIELDS = "items(name,size,crc32c),prefixes,nextPageToken"  # a fifth of what comes unasked
FIRST_READ_BYTES, MAX_READ_BYTES = 64 * 1024, 8 * 1024**2


class GcsStorage:
    """Objects of any bucket, by paths such as gs://bucket/dir/name; a directory is a common prefix."""

    def stat(self, path: str) -> Stat:
        """See Storage. The checksum is the bucket's own."""
        blob = _blob(path)
        call(path, "find", lambda: blob.reload(timeout=TIMEOUT_SECONDS, retry=None))
        return _stat(blob)

    def exists(self, path: str) -> bool:
        """See Storage."""
        blob = _blob(path)
        if call(path, "find", lambda: _there(blob)):
            return True
        listing = {"prefix": f"{blob.name.rstrip('/')}/" if blob.name else "", "max_results": 1}
        return bool(call(path, "list", lambda: list(_listed(blob.bucket, **listing))))

    def read(self, path: str) -> bytes:
        """See Storage."""
        return call(path, "read", lambda: _download(path, None, None))

    def read_ranges(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
        """See Storage. Up to 32 requests and 64 MiB ahead."""
        ahead: deque[tuple[Future[bytes], int]] = deque()
        held, left = 0, threading.Event()
        try:
            for path, offset, size in ranges:
                while ahead and (len(ahead) >= REQUESTS_AHEAD or held + size > BYTES_AHEAD):
                    future, done = ahead.popleft()
                    yield future.result()
                    held -= done
                ahead.append((_started(path, offset, size, left), size))
                held += size
            while ahead:
                yield ahead.popleft()[0].result()
        finally:
            left.set()  # who is still on its way tries no more

    def open(self, path: str) -> BinaryIO:
        """See Storage. Reads little at first and more the longer it goes straight on."""
        return cast(BinaryIO, io.BufferedReader(_RangeFile(path, self.stat(path).bytes), FIRST_READ_BYTES // 8))

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage. Small files in one request, large ones as a resumable upload of 8 MiB pieces."""
        upload = Upload(_blob(path), path)
        try:
            yield upload
        except BaseException:
            upload.abort()
            raise
        upload.finish()

    def create(self, path: str, data: bytes) -> bool:
        """See Storage: the bucket decides between two creators."""
        blob, tried = _blob(path), []

        def put() -> None:
            tried.append(path)
            blob.upload_from_string(data, if_generation_match=0, timeout=TIMEOUT_SECONDS, retry=None)

        try:
            call(path, "create", put)
        except PreconditionFailed:
            # An attempt whose answer was lost may have been ours.
            return len(tried) > 1 and self.read(path) == data
        return True

    def list(self, directory: str) -> dict[str, Stat]:
        """See Storage. A request for each 1,000 names, one after the other."""
        return self.entries(directory)[0]

    def entries(self, directory: str) -> tuple[dict[str, Stat], Sequence[str]]:
        """See Storage."""
        prefix = _blob(f"{directory.rstrip('/')}/").name

        def listed() -> tuple[list[Any], set[str]]:
            listing = _listed(_blob(directory).bucket, prefix=prefix, delimiter="/", fields=_LISTED_FIELDS)
            return list(listing), set(listing.prefixes)  # known when the listing is at its end

        blobs, prefixes = call(directory, "list", listed)
        files = {blob.name[len(prefix) :]: _stat(blob) for blob in blobs if blob.name != prefix}
        return files, sorted(found[len(prefix) :].rstrip("/") for found in prefixes)

    def delete(self, path: str) -> None:
        """See Storage."""
        with contextlib.suppress(MissingError):
            call(path, "delete", lambda: _blob(path).delete(timeout=TIMEOUT_SECONDS, retry=None))

    def sweep(self, directory: str, names: Iterable[str]) -> None:
        """See Storage: an upload that was killed has left nothing to see, and the bucket forgets it after a week."""


def _blob(path: str) -> Any:
    bucket, _, name = path.removeprefix("gs://").partition("/")
    if not path.startswith("gs://") or not bucket:
        raise StorageError(f"{path!r} is not a path in a bucket. It must be like gs://bucket/dir/name.")
    return client().bucket(bucket).blob(name)


def _stat(blob: Any) -> Stat:
    crc = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
    return Stat(int(blob.size), crc)


def _there(blob: Any) -> bool:
    if not blob.name:
        return False
    try:
        blob.reload(timeout=TIMEOUT_SECONDS, retry=None)
    except NotFound:
        return False
    return True


def _listed(bucket: Any, **options: Any) -> Any:
    return client().list_blobs(bucket, timeout=TIMEOUT_SECONDS, retry=None, **options)


def _download(path: str, start: int | None, end: int | None) -> bytes:
    # Raw: an object that says it is gzip would else come unpacked, and ranges would mean other bytes.
    return _blob(path).download_as_bytes(
        start=start, end=end, raw_download=True, timeout=TIMEOUT_SECONDS, retry=None, checksum=None
    )


def _started(path: str, offset: int, size: int, left: threading.Event) -> Future[bytes]:
    # A thread of its own: 60 us beside a request's millisecond. Those of a pool are waited for when the process ends,
    # and one may hang in a stalled request.
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            future.set_result(_read_range(path, offset, size, left))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="infeed-gcs", daemon=True).start()
    return future


def _read_range(path: str, offset: int, size: int, left: threading.Event | None = None) -> bytes:
    if size == 0:
        return b""

    def read() -> bytes:
        data = _download(path, offset, offset + size - 1)
        if len(data) != size:
            _check_end(path, offset, size)
            raise ShortBody(f"{len(data)} bytes of {size} at byte {offset}")
        return data

    try:
        return call(path, "read", read, left)
    except StorageError:
        if not (left and left.is_set()):
            _check_end(path, offset, size)  # a range that begins past the end is an error of its own
        raise


def _check_end(path: str, offset: int, size: int) -> None:
    blob = _blob(path)
    if call(path, "find", lambda: _there(blob)) and blob.size < offset + size:
        raise StorageError(
            f"{path} ends at byte {blob.size}, but bytes {offset}..{offset + size} are needed. "
            "It is truncated, or changed while it was read."
        )


class _RangeFile(io.RawIOBase):
    """A seekable object, read by ranges that double while it is read on and begin small again after a far seek."""

    def __init__(self, path: str, size: int) -> None:
        self._path, self._size = path, size
        self._at = self._from = 0
        self._ahead, self._next_bytes = b"", FIRST_READ_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        if self._at >= self._size:
            return 0
        if not self._from <= self._at < self._from + len(self._ahead):
            self._fetch()
        start = self._at - self._from
        piece = self._ahead[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _fetch(self) -> None:
        gap = self._at - (self._from + len(self._ahead))
        near = 0 <= gap < self._next_bytes
        self._next_bytes = min(2 * self._next_bytes, MAX_READ_BYTES) if near else FIRST_READ_BYTES
        size = min(self._next_bytes, self._size - self._at)
        self._from, self._ahead = self._at, _read_range(self._path, self._at, size)
