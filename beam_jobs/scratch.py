"""Compressed raw files: streamed once to an uncompressed temporary file, which can then be read by ranges.

Records of a .tar.gz, or any .gz or zlib stream, cannot be found without reading everything before them. The temporary
file stands in <output>/_scratch until the commit removes it; an interrupted run finds it there and goes on."""

import hashlib
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from pipeline.shards.errors import RawDataError, StorageError
from pipeline.shards.frames import Compression
from pipeline.shards.storage import Storage, join
from pipeline.sources import inflating

__all__ = ["inflated", "uncompressed"]

_PIECE_BYTES = 1 << 20
_TAIL_BYTES = 8  # gzip ends with crc32 and size, zlib with its adler32: a repaired file may be as long as the old one


def uncompressed(raw: Storage, uri: str, output: Storage, output_dir: str, compression: Compression = "gzip") -> str:
    """The path of the uncompressed file. Raises RawDataError when the compressed one is damaged; nothing stays then."""
    stat = raw.stat(uri)
    tail = min(stat.bytes, _TAIL_BYTES)
    end = b"".join(raw.read_ranges([(uri, stat.bytes - tail, tail)]))
    version = f"{uri}\0{stat}\0".encode("utf-8", "surrogateescape") + end
    source = hashlib.blake2b(version, digest_size=8).hexdigest()
    directory = join(output_dir, "_scratch")
    path = join(directory, source)
    output.sweep(directory, {source})
    if output.exists(path):  # it appears whole or not at all
        return path
    with raw.open(uri) as compressed, output.publish(path) as sink:
        for piece in inflated(compressed, compression, uri):
            sink.write(piece)
        if raw.stat(uri) != stat:
            raise RawDataError(f"{uri} was written again while it was uncompressed. Run the same command again.")
    return path


def inflated(file: BinaryIO, compression: Compression, name: str) -> Iterator[bytes]:
    """The content of a compressed file, front to back, in pieces. Raises RawDataError naming it when it is damaged."""
    try:
        yield from inflating.inflated(iter(lambda: file.read(_PIECE_BYTES), b""), compression)
    except zlib.error as e:
        raise RawDataError(f"{name} is truncated or damaged: {e}. Copy it again.") from e
    except StorageError:
        raise
    except OSError as e:
        raise StorageError(f"cannot read {name}: {e.strerror or e}.") from e
