"""Compressed raw files, uncompressed while they are read."""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from pipeline.errors import RawDataError
from pipeline.storage.storage import Storage


@contextlib.contextmanager
def uncompressed(storage: Storage, path: str) -> Iterator[BinaryIO]:
    """The file from its beginning, uncompressed if its name ends in .gz. Raises RawDataError, StorageError."""
    with storage.open(path) as file:
        if not path.endswith(".gz"):
            yield file
            return
        try:
            with gzip.open(file) as stream:
                yield cast(BinaryIO, stream)
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise RawDataError(f"{path} is truncated or damaged: {e}. Copy it again.") from e
