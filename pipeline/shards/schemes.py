"""Which storage a path belongs to. The edge where a string from a user becomes a Storage."""

from pipeline.shards.errors import OptionError
from pipeline.shards.local import LocalStorage
from pipeline.shards.storage import Storage

__all__ = ["is_remote", "open_storage"]


def is_remote(uri: str) -> bool:
    """Whether it is not on a local disk."""
    return "://" in uri


def open_storage(uri: str) -> Storage:
    """The storage that `uri` lives in. Raises OptionError for a scheme that is not known, and for no path at all."""
    if not uri:
        raise OptionError(
            "a path is empty: did a variable of the shell have no value? Give one; the current directory is '.'."
        )
    if not is_remote(uri):
        return LocalStorage()
    scheme, _, _ = uri.partition("://")
    if scheme == "gs":
        from pipeline.shards.gcs import GcsStorage  # 0.7 s, which a local run need not wait

        return GcsStorage()
    raise OptionError(f"{uri!r}: storage {scheme}:// is not supported. Allowed: a path on a local disk, or gs://.")
