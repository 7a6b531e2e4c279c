"""Compressed raw files: streamed once to an uncompressed temporary file, which can then be read by ranges.

Records of a .tar.gz, or any .gz, cannot be found without reading everything before them. The temporary file stands in
<output>/_scratch until the commit removes it; an interrupted run finds it there and goes on."""

import gzip
import hashlib
import zlib
from typing import BinaryIO, cast

from pipeline.shards.errors import RawDataError, StorageError
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
    with raw.open(uri) as compressed, gzip.open(compressed) as stream, output.publish(path) as sink:
        while piece := _read(cast(BinaryIO, stream), uri):
            sink.write(piece)
    return path


def _read(stream: BinaryIO, uri: str) -> bytes:
    """The next piece. Told apart from what the writing raises: both may be an OSError."""
    try:
        return stream.read(_PIECE_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise RawDataError(f"{uri} is truncated or damaged: {e}. Copy it again.") from e
    except StorageError:
        raise
    except OSError as e:
        raise StorageError(f"cannot read {uri}: {e.strerror or e}.") from e
