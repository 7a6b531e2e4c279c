"""Compressed raw files: streamed once to an uncompressed temporary file, which can then be read by ranges.

Records of a .tar.gz, or any .gz, cannot be found without reading everything before them. The temporary file stands in
<output>/_scratch until the commit removes it; an interrupted run finds it there and goes on."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from pipeline.shards.errors import RawDataError
from pipeline.shards.storage import Storage, join

__all__ = ["uncompressed"]

_PIECE_BYTES = 1 << 20


def uncompressed(raw: Storage, uri: str, output: Storage, output_dir: str) -> str:
    """The path of the uncompressed file. Raises RawDataError when the compressed one is damaged; nothing stays then."""
    version = f"{uri}\0{raw.stat(uri)}".encode("utf-8", "surrogateescape")
    source = hashlib.blake2b(version, digest_size=8).hexdigest()
    directory = join(output_dir, "_scratch")
    path = join(directory, source)
    output.sweep(directory, {source})
    if output.exists(path):  # it appears whole or not at all
        return path
    with raw.open(uri) as compressed, output.publish(path) as sink:
        for piece in _pieces(compressed, uri):
            sink.write(piece)
    return path


def _pieces(compressed: BinaryIO, uri: str) -> Iterator[bytes]:
    """Raises RawDataError here, inside of the publication, which takes gzip's own error for one of writing."""
    try:
        with gzip.open(compressed) as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise RawDataError(f"{uri} is truncated or damaged: {e}. Copy it again.") from e
