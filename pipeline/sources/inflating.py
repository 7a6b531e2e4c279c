"""Decompression, front to back, of GZIP with any number of members, or ZLIB, as TensorFlow writes them.

For conversions and readers of compressed files. Takes and yields pieces of bytes; no storage."""

import zlib
from collections.abc import Iterable, Iterator

from pipeline.shards.frames import Compression

__all__ = ["inflated"]

MAX_PIECE_BYTES = 1 << 20  # a small file may inflate to a thousand times its size
_WINDOW_BITS = {"gzip": 31, "zlib": 15}


def inflated(pieces: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """The decompressed content of the pieces of a file. Raises zlib.error if it is damaged or ends early."""
    inflate = None
    for data in pieces:
        while data:
            if inflate is None or inflate.eof:
                if inflate and compression == "zlib":
                    raise zlib.error("there is data after the end of the zlib stream")
                if inflate and not (data := data.lstrip(b"\0")):  # like gzip, takes zeros after a member as padding
                    break
                inflate = zlib.decompressobj(_WINDOW_BITS[compression])
            if piece := inflate.decompress(data, MAX_PIECE_BYTES):
                yield piece
            data = inflate.unconsumed_tail or inflate.unused_data  # noqa: PLW2901 - the rest of it
    while inflate is None or not inflate.eof:
        piece = inflate.decompress(b"", MAX_PIECE_BYTES) if inflate else b""
        if not piece:
            raise zlib.error(f"the {compression} stream has no end")
        yield piece
