"""Members of an uncompressed tar as byte ranges of the file it lies in, also of a tar inside a tar.

Nothing is extracted: only headers are read. Member names are data here, never paths."""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pipeline.shards.errors import RawDataError
from pipeline.shards.storage import Storage

__all__ = ["Member", "TarError", "members"]


class TarError(RawDataError):
    """A tar is truncated or damaged: the members after this place are out of reach."""


@dataclass(frozen=True)
class Member:
    """One member: its name as it stands in the tar, and where its bytes lie in the outer file."""

    name: str
    offset: int
    size: int
    kind: str  # "file", or what else it is


class _Section(io.RawIOBase):
    """A byte range of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, offset: int, size: int):
        self._file, self._offset, self._size, self._position = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        self._file.seek(self._offset + self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data


def members(storage: Storage, uri: str, offset: int, size: int) -> Iterator[Member]:
    """The members of the tar in bytes offset..offset+size of a file, in order, directories left out.

    Raises TarError where the tar breaks off, after everything before that place."""
    with storage.open(uri) as file:
        section = _Section(file, offset, size)
        try:
            with tarfile.open(fileobj=section, mode="r:") as tar:
                for info in tar:
                    tar.members = []  # pyright: ignore - tarfile keeps every header; a class tar has thousands, a web-scale one millions
                    if not info.isdir():
                        yield Member(info.name, offset + info.offset_data, info.size, _kind(info))
                # tarfile takes a damaged header, or a cut between two members, for the end: look for the end mark.
                section.seek(tar.offset)
                if section.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError(f"no header and no end mark at byte {tar.offset}")
        except tarfile.TarError as e:
            raise TarError(
                f"{uri} breaks off as a tar: {e}. It is damaged, compressed, or was not fully copied."
            ) from e


def _kind(info: tarfile.TarInfo) -> str:
    if info.issparse():
        return "sparse file"
    if info.isreg():
        return "file"
    return "link" if info.issym() or info.islnk() else "special file"
