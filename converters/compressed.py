"""Compressed raw files become uncompressed ones that can be read by ranges; or, in a --dry_run, one clear error."""

from beam_jobs.scratch import Scratch
from pipeline.shards.errors import OptionError
from pipeline.shards.frames import Compression
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage

__all__ = ["stat_of", "to_scratch"]


def to_scratch(storage: Storage, path: str, scratch: Scratch | None, compression: Compression = "gzip") -> str:
    """The path of the uncompressed temporary file.

    scratch: None forbids writing. Raises OptionError then, and RawDataError."""
    if scratch is None:
        raise OptionError(f"{path} has to be uncompressed before it can be scanned, and --dry_run writes nothing.")
    return scratch.uncompressed(storage, path, compression)


def stat_of(storage: Storage, path: str, place: str) -> Stat:
    """Of the file at `place`: a raw file, or a temporary one that was made from the raw file `path`.

    A temporary one has the raw file's stamp: it is made anew by each run, which is no change of the raw data."""
    stat = open_storage(place).stat(place)
    if place == path:
        return stat
    origin = storage.stat(path)
    return stat._replace(stamp=origin.stamp, crc32c=origin.crc32c if stat.crc32c is None else stat.crc32c)
