"""Storage in buckets that speak S3: Amazon's, R2, CoreWeave, MinIO and others, by obstore.

Objects have no checksum that we could compare with ours, but an ETag, which changes with their
content: it is their stamp."""

import contextlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import obstore
from obstore import exceptions as failed

from pipeline.errors import StorageError
from pipeline.storage.objects import MissingError, ObjectStorage
from pipeline.storage.s3_client import attempts, naming, parts, store_of
from pipeline.storage.storage import Listing, Sink, Stat, past_end

PIECE_BYTES = 8 * 1024**2  # of an upload; four are on their way
_DIRECTORY = ".directory"  # the object that marks an empty one: names must not end in a slash


class S3Storage(ObjectStorage):
    """Objects in any bucket that speaks S3."""

    def stat(self, path: str) -> Stat:
        """See Storage. The stamp is the ETag."""
        store, key = _place(path)
        with naming(path, "find"):
            return _stat(obstore.head(store, key))

    def exists(self, path: str) -> bool:
        store, key = _place(path.rstrip("/"))
        if key and not path.endswith("/"):
            with contextlib.suppress(MissingError):
                self.stat(path)
                return True
        with naming(path, "list"):
            return bool(next(iter(obstore.list(store, key, chunk_size=1)), None))

    def read(self, path: str) -> bytes:
        store, key = _place(path)
        with naming(path, "read"):
            return bytes(obstore.get(store, key).bytes())

    def read_range(
        self, path: str, offset: int, size: int, left: threading.Event | None = None
    ) -> bytes:
        if not size:
            return b""
        store, key = _place(path)
        try:
            with naming(path, "read"):
                data = bytes(obstore.get_range(store, key, start=offset, length=size))
        except MissingError:
            raise
        except StorageError:  # one that begins past the end has an error status
            self._check_end(path, offset, size)
            raise
        if len(data) != size:
            self._check_end(path, offset, size)
            raise StorageError(f"cannot read {path}: {len(data)} bytes of {size} at byte {offset}.")
        return data

    def _check_end(self, path: str, offset: int, size: int) -> None:
        end = self.stat(path).bytes
        if end < offset + size:
            raise past_end(path, end, offset, size)

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage. Small files take one request, large ones an upload in pieces of 8 MiB. What
        a killed one leaves is not visible; a rule of the bucket should remove it."""
        store, key = _place(path)
        with naming(path, "write"):
            writer = obstore.open_writer(store, key, buffer_size=PIECE_BYTES, max_concurrency=4)
        upload = _Upload(path, writer)
        try:
            yield upload
            with naming(path, "write"):
                writer.close()
        except BaseException as error:
            with contextlib.suppress(failed.BaseError, OSError):
                writer.__exit__(type(error), error, None)
            raise
        if self.stat(path).bytes != upload.size:
            raise StorageError(
                f"{path} does not hold the bytes that were uploaded. Run the same command again."
            )

    def current(self, path: str) -> tuple[Any, bytes | None]:
        store, key = _place(path)
        try:
            with naming(path, "read"):
                found = obstore.get(store, key)
                return found.meta["e_tag"], bytes(found.bytes())
        except MissingError:
            return None, None

    def replaced(self, path: str, version: Any, data: bytes) -> bool:
        """False if the object has another ETag by now."""
        _check_conditions(path)
        store, key = _place(path)
        mode: Any = {"e_tag": version} if version else "create"
        try:
            with naming(path, "write" if version else "create"):
                obstore.put(store, key, data, mode=mode, use_multipart=False)
        except (failed.AlreadyExistsError, failed.PreconditionError) as error:
            # An earlier attempt, whose response was lost, may have succeeded.
            return attempts(error) > 1 and self.current(path)[1] == data
        return True

    def entries(self, directory: str) -> tuple[Listing, Sequence[str]]:
        store, key = _place(directory.rstrip("/"))
        with naming(directory, "list"):
            listed = obstore.list_with_delimiter(store, key or None)
        names = [found["path"][len(key) :].lstrip("/") for found in listed["objects"]]
        files = zip(names, map(_stat, listed["objects"]), strict=True)
        prefixes = [prefix[len(key) :].strip("/") for prefix in listed["common_prefixes"]]
        return {name: stat for name, stat in sorted(files) if name not in ("", _DIRECTORY)}, sorted(
            prefixes
        )

    def delete(self, path: str) -> None:
        store, key = _place(path)
        with contextlib.suppress(MissingError), naming(path, "delete"):
            obstore.delete(store, key)


class _Upload:
    """A sink that counts."""

    def __init__(self, path: str, writer: Any) -> None:
        self.size = 0
        self._path = path
        self._writer = writer

    def write(self, data: bytes, /) -> int:
        with naming(self._path, "write"):
            self._writer.write(data)
        self.size += len(data)
        return len(data)


def _place(path: str) -> tuple[Any, str]:
    """(client, key)."""
    bucket, key = parts(path)
    return store_of(bucket), f"{key}{_DIRECTORY}" if key.endswith("/") else key


def _stat(found: Any) -> Stat:
    tag = (found["e_tag"] or "").encode()
    return Stat(found["size"], stamp=int.from_bytes(blake2b(tag, digest_size=8).digest(), "big"))


_conditional = set[str]()  # buckets


def _check_conditions(path: str) -> None:
    """Raises StorageError for a service that would let two creators or two updates both win, before
    the first of this process in a bucket."""
    bucket, key = parts(path)
    if bucket in _conditional:
        return
    store = store_of(bucket)
    probe = f"{key.rpartition('/')[0]}/.conditions-{secrets.token_hex(8)}".lstrip("/")
    with naming(path, "create"):
        obstore.put(store, probe, b"", use_multipart=False)
    modes: Sequence[Any] = ("create", {"e_tag": '"0"'})
    try:
        refused = [_refused(store, probe, mode) for mode in modes]
    finally:
        with naming(path, "delete"):
            obstore.delete(store, probe)
    if not all(refused):
        raise StorageError(
            f"s3://{bucket}: this service ignores or refuses conditional writes (If-None-Match, "
            "If-Match), without which two programs could both own a directory. Use a service or a "
            "version that has them."
        )
    _conditional.add(bucket)


def _refused(store: Any, key: str, mode: Any) -> bool:
    try:
        obstore.put(store, key, b"", mode=mode, use_multipart=False)
    except (failed.AlreadyExistsError, failed.PreconditionError):
        return True
    except failed.NotSupportedError:
        pass
    return False
