"""Storage in Google Cloud Storage, by Google's client."""

import base64
import contextlib
import threading
from collections.abc import Collection, Iterator
from typing import Any

from pipeline.storage.gcs_calls import (
    TIMEOUT_SECONDS,
    PreconditionFailed,
    call,
    client,
)
from pipeline.storage.gcs_ranges import blob_at, download, find_blob
from pipeline.storage.gcs_upload import Upload
from pipeline.storage.objects import ObjectStorage
from pipeline.storage.storage import Listing, MissingError, Sink, Stat

_LISTED_FIELDS = "items(name,size,crc32c),prefixes,nextPageToken"  # a fifth of the default response


class GcsStorage(ObjectStorage):
    """Objects in any bucket of Google Cloud Storage."""

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
        blob = blob_at(path)  # looks for credentials, which `call` would log as a read
        return call(path, "read", lambda: download(blob))

    def part(self, path: str, offset: int, size: int, left: threading.Event | None) -> bytes:
        blob = blob_at(path)
        return call(path, "read", lambda: download(blob, offset, offset + size - 1), left)

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

    def current(self, path: str) -> tuple[Any, bytes | None]:
        blob = find_blob(path)
        # content newer than `blob` is not replaced
        return (blob.generation, self.read(path)) if blob else (None, None)

    def replaced(self, path: str, version: Any, data: bytes) -> bool:
        """False if the object has another generation by now."""
        blob = blob_at(path)
        tried = []

        def put() -> None:
            tried.append(path)
            blob.upload_from_string(
                data, if_generation_match=version or 0, timeout=TIMEOUT_SECONDS, retry=None
            )

        try:
            call(path, "write" if version else "create", put)
        except PreconditionFailed:
            # An earlier attempt, whose response was lost, may have succeeded.
            return len(tried) > 1 and self.read(path) == data
        return True

    def found(self, directory: str) -> tuple[Listing, Collection[str]]:
        prefix = blob_at(f"{directory.rstrip('/')}/").name

        def listed() -> tuple[list[Any], set[str]]:
            listing = _listed(
                blob_at(directory).bucket, prefix=prefix, delimiter="/", fields=_LISTED_FIELDS
            )
            return list(listing), set(listing.prefixes)  # complete only at the end of the listing

        blobs, prefixes = call(directory, "list", listed)
        files = {blob.name[len(prefix) :]: _stat(blob) for blob in blobs if blob.name != prefix}
        return files, [name[len(prefix) :].rstrip("/") for name in prefixes]

    def delete(self, path: str) -> None:
        with contextlib.suppress(MissingError):
            call(path, "delete", lambda: blob_at(path).delete(timeout=TIMEOUT_SECONDS, retry=None))


def _stat(blob: Any) -> Stat:
    crc = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
    return Stat(int(blob.size), crc)


def _listed(bucket: Any, **options: Any) -> Any:
    return client().list_blobs(bucket, timeout=TIMEOUT_SECONDS, retry=None, **options)
