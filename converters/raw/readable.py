"""A raw file that can be read by ranges: the file itself, or its temporary uncompressed copy."""

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch
from pipeline.errors import OptionError
from pipeline.shards.frames import Compression
from pipeline.storage.schemes import open_storage


def readable(
    path: str, scratch: Scratch | None, split: str = "", compression: Compression | None = None
) -> Source:
    """The raw file itself as a unit to scan, or its temporary uncompressed copy.

    A copy has the stamp of the raw file: each run makes it again, which is not a change of the raw
    data. scratch: None forbids writing. split: "" for a file of several. compression: None for the
    one that the name announces, if any. Raises OptionError if it would have to write, and
    RawDataError."""
    storage = open_storage(path)
    if not compression and path.lower().endswith((".gz", ".tgz")):
        compression = "gzip"
    if not compression:
        stat = storage.stat(path)
        return Source(split, path, stat, bytes=stat.bytes)
    if scratch is None:
        raise OptionError(
            f"{path} has to be uncompressed before it can be scanned, and --dry-run writes nothing."
        )
    uri = scratch.uncompressed(storage, path, compression)
    stat = open_storage(uri).stat(uri)
    origin = storage.stat(path)
    crc32c = origin.crc32c if stat.crc32c is None else stat.crc32c
    stat = stat._replace(stamp=origin.stamp, crc32c=crc32c)
    return Source(split, uri, stat, bytes=stat.bytes, origin=path)
