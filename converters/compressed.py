"""Compressed raw files become uncompressed ones that can be read by ranges; or, in a --dry_run, one clear error."""

from beam_jobs.scratch import Scratch
from pipeline.shards.errors import OptionError
from pipeline.shards.frames import Compression
from pipeline.shards.storage import Storage

__all__ = ["to_scratch"]


def to_scratch(storage: Storage, path: str, scratch: Scratch | None, compression: Compression = "gzip") -> str:
    """The path of the uncompressed temporary file.

    scratch: None forbids writing. Raises OptionError then, and RawDataError."""
    if scratch is None:
        raise OptionError(f"{path} has to be uncompressed before it can be scanned, and --dry_run writes nothing.")
    return scratch.uncompressed(storage, path, compression)
