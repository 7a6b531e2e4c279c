"""Which storage a path belongs to. The edge where a string from a user becomes a Storage."""

from pipeline.shards.errors import OptionError
from pipeline.shards.local import LocalStorage
from pipeline.shards.storage import Storage

__all__ = ["open_storage"]


def open_storage(uri: str) -> Storage:
    """The storage that `uri` lives in. Raises OptionError for a scheme that is not known."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return LocalStorage()
    if scheme == "gs":
        from pipeline.shards.gcs import GcsStorage  # 0.7 s, which a local run need not wait

        return GcsStorage()
    raise OptionError(f"{uri!r}: storage {scheme}:// is not supported. Allowed: a path on a local disk, or gs://.")
