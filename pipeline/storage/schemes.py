"""Maps a path to its storage. Here a string from a user becomes a Storage."""

from pipeline.errors import OptionError
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Storage


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
    if uri.startswith("gs:/") and not uri.startswith("gs://"):
        raise OptionError(
            f"{uri!r} is not a path in a bucket. Did you mean gs://{uri.removeprefix('gs:/')}?"
        )
    if not is_remote(uri):
        return LocalStorage()
    scheme, _, _ = uri.partition("://")
    if scheme == "gs":
        from pipeline.storage.gcs import GcsStorage  # takes 0.7 s, which local runs are spared

        return GcsStorage()
    raise OptionError(
        f"{uri!r}: storage {scheme}:// is not supported. Allowed: a path on a local disk, or gs://."
    )
