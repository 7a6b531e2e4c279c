"""Maps a path to its storage. Here a string from a user becomes a Storage."""

import re
from collections.abc import Callable

from pipeline.errors import OptionError
from pipeline.packages import how_to_install
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Storage


def _gcs() -> Storage:
    from pipeline.storage.gcs import GcsStorage  # takes 0.7 s, which local runs are spared

    return GcsStorage()


def _s3() -> Storage:
    try:
        from pipeline.storage.s3 import S3Storage
    except ImportError as error:
        raise OptionError(
            f"s3:// needs obstore, which is not installed. Install it: {how_to_install('s3')}."
        ) from error
    return S3Storage()


BUCKETS: dict[str, Callable[[], Storage]] = {"gs": _gcs, "s3": _s3}
"""Scheme -> the storage of its buckets. Another kind of bucket is a row here and a class."""
PLACES = f"a path on a local disk, or {' or '.join(f'{scheme}://' for scheme in BUCKETS)}"
_ONE_SLASH = re.compile(rf"({'|'.join(BUCKETS)}):/(?!/)")


def is_remote(uri: str) -> bool:
    """Whether the path has a scheme, so is not on a local disk."""
    return "://" in uri


def open_storage(uri: str) -> Storage:
    """The storage of `uri`. Raises OptionError for an unknown scheme and for an empty path."""
    if not uri:
        raise OptionError(
            "a path is empty; perhaps a shell variable has no value. Give a path; the current "
            "directory is '.'."
        )
    if begin := _ONE_SLASH.match(uri):
        meant = f"{begin[1]}://{uri[begin.end() :]}"
        raise OptionError(f"{uri!r} is not a path in a bucket. Did you mean {meant}?")
    if not is_remote(uri):
        return LocalStorage()
    scheme, _, _ = uri.partition("://")
    if scheme not in BUCKETS:
        raise OptionError(f"{uri!r}: storage {scheme}:// is not supported. Allowed: {PLACES}.")
    return BUCKETS[scheme]()
