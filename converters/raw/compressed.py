"""Compressed raw files, uncompressed to temporary files, which can be read by ranges."""

from dataclasses import replace
from typing import Any, NamedTuple

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch
from pipeline.errors import OptionError
from pipeline.shards.frames import Compression
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat, Storage


class Readable(NamedTuple):
    """An uncompressed file. origin: the compressed raw file that it was made from, or ""."""

    uri: str
    stat: Stat
    origin: str = ""

    def source(self, split: str, **fields: Any) -> Source:
        """A unit to scan: the complete file, unless the fields state a part of it."""
        return replace(Source(split, self.uri, self.stat, bytes=self.stat.bytes, origin=self.origin), **fields)


def by_suffix(path: str) -> Compression | None:
    """The compression that a file's name announces."""
    return "gzip" if path.endswith((".gz", ".tgz")) else None


def readable(storage: Storage, path: str, scratch: Scratch | None, compression: Compression | None) -> Readable:
    """The raw file itself, or its temporary uncompressed copy.

    A copy has the stamp of the raw file: each run makes it again, which is not a change of the raw data.
    scratch: None forbids writing. Raises OptionError if it would have to, and RawDataError."""
    if not compression:
        return Readable(path, storage.stat(path))
    if scratch is None:
        raise OptionError(f"{path} has to be uncompressed before it can be scanned, and --dry-run writes nothing.")
    uri = scratch.uncompressed(storage, path, compression)
    stat, origin = open_storage(uri).stat(uri), storage.stat(path)
    crc32c = origin.crc32c if stat.crc32c is None else stat.crc32c
    return Readable(uri, stat._replace(stamp=origin.stamp, crc32c=crc32c), path)
