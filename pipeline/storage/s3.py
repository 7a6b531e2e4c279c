"""Storage in buckets that speak S3: Amazon's, R2, CoreWeave, MinIO and others, by obstore.

Objects have no checksum that can be compared with ours. Their stamp is the ETag, which changes with
the content."""

import contextlib
import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import obstore
from obstore import exceptions as failed

from pipeline.errors import StorageError
from pipeline.storage.objects import ObjectStorage
from pipeline.storage.s3_client import call, parts, retries, store_of
from pipeline.storage.storage import Listing, MissingError, Sink, Stat

PIECE_BYTES = 8 * 1024**2  # of an upload; four are on their way
_CONFLICTS = 10
_DIRECTORY = ".directory"  # the object that marks an empty one: names must not end in a slash


class S3Storage(ObjectStorage):
    """Objects in any bucket that speaks S3."""

    def stat(self, path: str) -> Stat:
        """See Storage. The stamp is the ETag."""
        store, key = _place(path)
        return call(path, "find", lambda: _stat(obstore.head(store, key)))

    def exists(self, path: str) -> bool:
        store, key = _directory(path)
        if key and not path.endswith("/"):
            with contextlib.suppress(MissingError):
                self.stat(path)
                return True
        first = call(path, "list", lambda: next(iter(obstore.list(store, key, chunk_size=1)), None))
        return bool(first)

    def read(self, path: str) -> bytes:
        store, key = _place(path)
        return call(path, "read", lambda: bytes(obstore.get(store, key).bytes()))

    def part(self, path: str, offset: int, size: int, left: threading.Event | None) -> bytes:
        store, key = _place(path)

        def read() -> bytes:
            return bytes(obstore.get_range(store, key, start=offset, length=size))

        return call(path, "read", read, left=left)

    @contextlib.contextmanager
    def publish(self, path: str) -> Iterator[Sink]:
        """See Storage. Small files take one request, large ones an upload in pieces of 8 MiB. What
        a killed one leaves is not visible; a rule of the bucket should remove it."""
        store, key = _place(path)
        options: Any = {"buffer_size": PIECE_BYTES, "max_concurrency": 4}
        writer = call(path, "write", lambda: obstore.open_writer(store, key, **options))
        upload = _Upload(path, writer)
        try:
            yield upload
            call(path, "write", writer.close, tries=1)
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

        def read() -> tuple[Any, bytes]:
            found = obstore.get(store, key)
            return found.meta["e_tag"], bytes(found.bytes())

        try:
            return call(path, "read", read)
        except MissingError:
            return None, None

    def replaced(self, path: str, version: Any, data: bytes) -> bool:
        """False if the object has another ETag by now."""
        store, key = _place(path)
        _check_conditions(path)
        mode: Any = {"e_tag": version} if version else "create"
        tried = []

        def put() -> None:
            tried.append(path)
            obstore.put(store, key, data, mode=mode, use_multipart=False)

        for _ in range(_CONFLICTS):
            try:
                call(path, "write" if version else "create", put)
                return True
            except (failed.AlreadyExistsError, failed.PreconditionError) as error:
                there = None
                # 409: several wrote concurrently, and perhaps none of them succeeded.
                if len(tried) > 1 or retries(error) or "409 Conflict" in str(error):
                    _, there = self.current(path)
                    # An earlier attempt, whose response was lost, may have succeeded.
                    if there is None and version is None:
                        continue
                return there == data
        raise StorageError(
            f"cannot create {path}: the service reported concurrent writers {_CONFLICTS} times. "
            "Run the same command again."
        )

    def found(self, directory: str) -> tuple[Listing, Collection[str]]:
        store, key = _directory(directory)
        listed = call(directory, "list", lambda: obstore.list_with_delimiter(store, key or None))
        files = {item["path"][len(key) :].lstrip("/"): _stat(item) for item in listed["objects"]}
        for no_file in ("", _DIRECTORY):
            files.pop(no_file, None)
        prefixes = [prefix[len(key) :].strip("/") for prefix in listed["common_prefixes"]]
        return dict(sorted(files.items())), prefixes

    def delete(self, path: str) -> None:
        store, key = _place(path)
        with contextlib.suppress(MissingError):
            call(path, "delete", lambda: obstore.delete(store, key))


class _Upload:
    """A sink that counts its bytes."""

    def __init__(self, path: str, writer: Any) -> None:
        self.size = 0
        self._path = path
        self._writer = writer

    def write(self, data: bytes, /) -> int:
        call(self._path, "write", lambda: self._writer.write(data), tries=1)
        self.size += len(data)
        return len(data)


def _place(path: str) -> tuple[Any, str]:
    """(client, key) of an object."""
    bucket, key = parts(path)
    if not key:
        raise StorageError(f"{path} is a bucket. Give a name in it: s3://{bucket}/dir/name.")
    return store_of(bucket), f"{key}{_DIRECTORY}" if key.endswith("/") else key


def _directory(path: str) -> tuple[Any, str]:
    """(client, key without a trailing slash); the key of a bucket is empty."""
    bucket, key = parts(path)
    return store_of(bucket), key.rstrip("/")


def _stat(found: Any) -> Stat:
    tag = (found["e_tag"] or "").encode()
    return Stat(found["size"], stamp=int.from_bytes(blake2b(tag, digest_size=8).digest(), "big"))


_conditional = set[str]()  # buckets


def _check_conditions(path: str) -> None:
    """Raises StorageError for a service that would let two creators or two updates both succeed.
    Asks before the first conditional write of this process to a bucket."""
    bucket, key = parts(path)
    if bucket in _conditional:
        return
    store = store_of(bucket)
    probe = f"{key.rpartition('/')[0]}/.conditions-{secrets.token_hex(8)}".lstrip("/")
    call(path, "create", lambda: obstore.put(store, probe, b"", use_multipart=False))
    modes: Sequence[Any] = ("create", {"e_tag": '"0"'})
    try:
        refused = [call(path, "create", partial(_refuses, store, probe, mode)) for mode in modes]
    finally:
        call(path, "delete", lambda: obstore.delete(store, probe))
    if not all(refused):
        raise StorageError(
            f"s3://{bucket}: this service ignores or refuses conditional writes (If-None-Match, "
            "If-Match), without which two programs could both own a directory. Use a service or a "
            "version that has them."
        )
    _conditional.add(bucket)


def _refuses(store: Any, key: str, mode: Any) -> bool:
    """Whether a condition that is not met keeps an object as it is."""
    try:
        obstore.put(store, key, b"", mode=mode, use_multipart=False)
    except (failed.AlreadyExistsError, failed.PreconditionError):
        return True
    except (failed.NotSupportedError, failed.GenericError) as error:
        if isinstance(error, failed.GenericError) and "501 Not Implemented" not in str(error):
            raise
    return False
