"""Storage in Google Cloud Storage. Objects appear completely or not at all, so shards get their
final names directly.

Reads are ranged and run ahead of the reader, with bounds on requests and bytes. Any thread may use
it."""

import base64
import contextlib
import io
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from pipeline.errors import StorageError
from pipeline.storage.gcs_calls import (
    TIMEOUT_SECONDS,
    MissingError,
    PreconditionFailed,
    call,
    client,
)
from pipeline.storage.gcs_ranges import blob_at, download, find_blob, read_range, read_ranges
from pipeline.storage.gcs_upload import Upload
from pipeline.storage.storage import Change, Listing, Ranges, Sink, Stat

_LISTED_FIELDS = "items(name,size,crc32c),prefixes,nextPageToken"  # a fifth of the default response
_UPDATES = 50
FIRST_READ_BYTES = 64 * 1024
MAX_READ_BYTES = 4 * 1024**2


class GcsStorage:
    """Objects in any bucket, with paths such as gs://bucket/dir/name. A directory is a common
    prefix."""

    remote = True

    def stat(self, path: str) -> Stat:
        """See Storage. The checksum is the bucket's."""
        blob = blob_at(path)
        call(path, "find", lambda: blob.reload(timeout=TIMEOUT_SECONDS, retry=None))
        return _stat(blob)

    def exists(self, path: str) -> bool:
        if find_blob(path):
            return True
        blob = blob_at(path)
        listing = {"prefix": f"{blob.name.rstrip('/')}/" if blob.name else "", "max_results": 1}
        return bool(call(path, "list", lambda: list(_listed(blob.bucket, **listing))))

    def read(self, path: str) -> bytes:
        return call(path, "read", lambda: download(path))

    def map(self, path: str) -> bytes:
        return self.read(path)

    def read_ranges(self, ranges: Ranges) -> Iterator[bytes]:
        """See Storage. Reads up to 64 requests and 64 MiB ahead."""
        return read_ranges(ranges)

    def open(self, path: str) -> BinaryIO:
        """See Storage. Reads small ranges first, and larger ones the longer reading is
        sequential."""
        return cast(
            BinaryIO,
            io.BufferedReader(_RangeFile(path, self.stat(path).bytes), FIRST_READ_BYTES // 8),
        )

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage. Small files take one request, large ones a resumable upload in pieces of 8
        MiB."""
        upload = Upload(blob_at(path), path)
        try:
            yield upload
            upload.finish()
        except BaseException:
            upload.abort()
            raise

    def create(self, path: str, data: bytes) -> bool:
        """See Storage. The bucket decides between two creators."""
        return _replaced(path, 0, data)

    def update(self, path: str, change: Change) -> None:
        """See Storage. Replaces only the generation that was read. Losing that race 50 times is an
        error."""
        for attempt in range(_UPDATES):
            with contextlib.suppress(MissingError):  # deleted between the two requests
                blob = find_blob(path)
                old = self.read(path) if blob else None  # if newer than `blob`, it is not replaced
                data = change(old)
                # Nothing to change is no error in buckets that forbid replacing objects.
                if data == old or _replaced(path, blob.generation if blob else 0, data):
                    return
            time.sleep(random.SystemRandom().uniform(0, 0.1 * attempt))
        raise StorageError(
            f"cannot update {path}: others changed it first, {_UPDATES} times. Run the same "
            "command again."
        )

    def list(self, directory: str) -> Listing:
        """See Storage. One request per 1,000 names, in sequence."""
        return self.entries(directory)[0]

    def entries(self, directory: str) -> tuple[Listing, Sequence[str]]:
        prefix = blob_at(f"{directory.rstrip('/')}/").name

        def listed() -> tuple[list[Any], set[str]]:
            listing = _listed(
                blob_at(directory).bucket, prefix=prefix, delimiter="/", fields=_LISTED_FIELDS
            )
            return list(listing), set(listing.prefixes)  # complete only at the end of the listing

        blobs, prefixes = call(directory, "list", listed)
        files = {blob.name[len(prefix) :]: _stat(blob) for blob in blobs if blob.name != prefix}
        return files, sorted(
            prefix_of_folder[len(prefix) :].rstrip("/") for prefix_of_folder in prefixes
        )

    def delete(self, path: str) -> None:
        with contextlib.suppress(MissingError):
            call(path, "delete", lambda: blob_at(path).delete(timeout=TIMEOUT_SECONDS, retry=None))

    def sweep(self, directory: str, names: Iterable[str]) -> None:
        """See Storage. Does nothing: a killed upload is never visible, and the bucket drops it
        after a week."""


def _replaced(path: str, generation: int, data: bytes) -> bool:
    """False if the object has another generation by now."""
    blob = blob_at(path)
    tried = []

    def put() -> None:
        tried.append(path)
        blob.upload_from_string(
            data, if_generation_match=generation, timeout=TIMEOUT_SECONDS, retry=None
        )

    try:
        call(path, "write" if generation else "create", put)
    except PreconditionFailed:
        # An earlier attempt, whose response was lost, may have succeeded.
        return len(tried) > 1 and call(path, "read", lambda: download(path)) == data
    return True


def _stat(blob: Any) -> Stat:
    crc = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
    return Stat(int(blob.size), crc)


def _listed(bucket: Any, **options: Any) -> Any:
    return client().list_blobs(bucket, timeout=TIMEOUT_SECONDS, retry=None, **options)


class _RangeFile(io.RawIOBase):
    """A seekable object. The ranges it reads double during sequential reading and restart small
    after a far seek."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._at = self._from = 0
        self._ahead = b""
        self._next_bytes = FIRST_READ_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(
            0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        )
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
        # frees the old piece first: a scan has 16 files open
        self._from = self._at
        self._ahead = b""
        self._ahead = read_range(self._path, self._at, size)
