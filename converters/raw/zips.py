"""Members of a zip as byte ranges of its file.

Extracts nothing: a scan streams the central directory only, however large the members are. (zipfile
keeps 640 bytes per member in memory, 800 MB for ImageNet.) Member names are data here, never paths.
Layout: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT"""

import contextlib
import itertools
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

from beam_jobs.converter import Reject
from converters.raw.tars import Member
from pipeline.errors import RawDataError
from pipeline.storage.storage import Storage

_STORED, _DEFLATED = 0, 8
# flags
_ENCRYPTED = 1 << 0
_UTF8 = 1 << 11
_FAT, _UNIX = 0, 3  # systems that wrote a member
_VERSIONS_OF_PYTHON = (20, 45)  # without and with zip64; Info-ZIP's are 23 and 30
_ZIP64_EXTRA = 1

# x: fields that nobody needs
_LOCAL = struct.Struct("<4s4xH16xHH")
_ENTRY = struct.Struct("<4xBB2xHH4xIIIHHH4xII")
_END = struct.Struct("<4xH4xHIIH")
_ZIP64_LOCATOR_BYTES = 20
_ZIP64_END = struct.Struct("<16xI12xQQQ")
_MAX_COMMENT_BYTES = _MAX_EXTRA_BYTES = (1 << 16) - 1
_NOT_HERE_32 = (1 << 32) - 1  # the number is in a zip64 field


class ZipError(RawDataError):
    """A zip is truncated or damaged, or has a member that cannot be read."""


@dataclass(frozen=True)
class ZipMember(Member):
    """A member of a zip. offset: of its header. size: of its content. span: bytes from offset that
    contain both.

    The length of the header is known only from the header, so `unpacked` takes the bytes of the
    span."""

    span: int
    crc32: int


class _Directory(NamedTuple):
    """Where the central directory is. shift: bytes before the zip, such as those of a
    self-extracting program."""

    begin: int
    size: int
    entries: int
    shift: int


def zip_members(storage: Storage, uri: str) -> Iterator[ZipMember]:
    """The members of a zip in the order of its central directory; folders are of kind "folder".

    Raises ZipError if the zip is damaged, or has a member that is encrypted or neither stored nor
    deflated."""
    size = storage.stat(uri).bytes
    with storage.open(uri) as file:
        directory = _directory(file, uri, size)
        entries = itertools.chain(_entries(file, uri, directory), (None,))
        for member, after in itertools.pairwise(entries):
            assert member
            # The span includes what follows the member: a data descriptor, or bytes left by an
            # update.
            end = after.offset if after and after.offset > member.offset else directory.begin
            span = min(end - member.offset, member.span + _MAX_EXTRA_BYTES)
            if span < member.span:
                raise _damaged(uri, f"member {member.name!r} overlaps what follows it")
            yield replace(member, span=span)


def unpacked(data: bytes, size: int, crc32: int) -> bytes:
    """The content of a member, `size` bytes, from its span. Raises Reject if it is damaged."""
    try:
        magic, method, name_bytes, extra_bytes = _LOCAL.unpack_from(data)
    except struct.error:
        raise Reject("damaged in its zip: no header") from None
    begin = _LOCAL.size + name_bytes + extra_bytes
    if magic != b"PK\3\4" or method not in (_STORED, _DEFLATED):
        raise Reject("damaged in its zip: not a header of a stored or deflated file")
    try:
        if method == _STORED:
            content = data[begin : begin + size]
        else:  # at most one byte more than the size, so that a decompression bomb takes no memory
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(
                memoryview(data)[begin:], size + 1
            )
    except zlib.error as e:
        raise Reject(f"damaged in its zip: {e}") from None
    if len(content) != size or zlib.crc32(content) != crc32:
        raise Reject(
            "damaged in its zip: its content has another size or checksum than in the zip's "
            "directory"
        )
    return content


def _directory(file: BinaryIO, uri: str, size: int) -> _Directory:
    begin = max(0, size - _END.size - _MAX_COMMENT_BYTES - _ZIP64_END.size - _ZIP64_LOCATOR_BYTES)
    file.seek(begin)
    tail = file.read(size - begin)
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        with contextlib.suppress(struct.error):
            disk, entries, length, offset, comment = _END.unpack_from(tail, at)
            if at + _END.size + comment <= len(tail):  # else the signature is part of the comment
                break
    else:
        raise _damaged(uri, "it has no central directory at its end")
    wide = at - _ZIP64_LOCATOR_BYTES - _ZIP64_END.size
    if wide >= 0 and tail[wide : wide + 4] == b"PK\6\6":
        disk, entries, length, offset = _ZIP64_END.unpack_from(tail, wide)
        at = wide
    elif _NOT_HERE_32 in (length, offset):
        raise _damaged(uri, "its zip64 record is not where it should be")
    if disk:
        raise ZipError(
            f"{uri} is the last of {disk + 1} parts of a zip. Join them, or unpack them all."
        )
    shift = begin + at - length - offset
    if shift < 0:
        raise _damaged(uri, f"it is {-shift:,} bytes shorter than its directory requires")
    return _Directory(shift + offset, length, entries, shift)


def _entries(file: BinaryIO, uri: str, directory: _Directory) -> Iterator[ZipMember]:
    file.seek(directory.begin)
    left = directory.size
    count = 0
    while left:
        header = file.read(min(_ENTRY.size, left))
        if len(header) < _ENTRY.size or not header.startswith(b"PK\1\2"):
            raise _damaged(uri, f"entry {count + 1:,} of its directory is not an entry")
        fields = _ENTRY.unpack(header)
        length = sum(fields[7:10])
        rest = file.read(min(length, left - len(header)))
        if len(rest) < length:
            raise _damaged(uri, f"entry {count + 1:,} of its directory is truncated")
        left -= len(header) + length
        count += 1
        yield _entry(uri, directory.shift, fields, rest)
    # some writers lack zip64 and wrap around
    if count != directory.entries and count & 0xFFFF != directory.entries:
        raise _damaged(uri, f"its directory has {count:,} entries instead of {directory.entries:,}")


def _entry(uri: str, shift: int, fields: tuple, rest: bytes) -> ZipMember:
    """The member, with the least span: its header and packed content, without extra fields of the
    header."""
    (
        version,
        system,
        flags,
        method,
        crc32,
        packed,
        size,
        name_bytes,
        extra_bytes,
        _,
        mode,
        offset,
    ) = fields
    name = _name(rest[:name_bytes], flags, system, version)
    if _NOT_HERE_32 in (size, packed, offset):
        extra = rest[name_bytes : name_bytes + extra_bytes]
        size, packed, offset = _zip64_numbers(uri, name, extra, [size, packed, offset])
    kind = (
        "folder"
        if name.endswith("/")
        else "link"
        if system == _UNIX and stat.S_ISLNK(mode >> 16)
        else "file"
    )
    if kind == "file":
        if flags & _ENCRYPTED:
            raise ZipError(
                f"{uri} is encrypted (member {name!r}). Unpack it with its password, and convert "
                "the folders."
            )
        if method not in (_STORED, _DEFLATED):
            raise ZipError(
                f"{uri} has member {name!r} with compression method {method}; only stored and "
                "deflated members can be read in place. Unpack it, or pack it again without "
                "compression (zip -0)."
            )
        # a span that large would be read for nothing
        if packed > 2 * size + 1024 or (method == _STORED and packed != size):
            raise _damaged(uri, f"member {name!r} has {size:,} bytes but takes {packed:,}")
    span = _LOCAL.size + name_bytes + packed
    return ZipMember(name, shift + offset, size, kind, span, crc32)


def _name(data: bytes, flags: int, system: int, version: int) -> str:
    """The name of a member. Programs on Unix write UTF-8 without its flag. Other names that are not
    UTF-8 are in the PC's old code page.

    So are those that Python writes on Unix, since 3.14: its versions of zip tell it from other
    programs there."""
    try:
        name = data.decode()
    except UnicodeDecodeError:
        unix = system == _UNIX and version not in _VERSIONS_OF_PYTHON
        name = (
            data.decode("utf-8", "surrogateescape")
            if flags & _UTF8 or unix
            else data.decode("cp437")
        )
    return name.replace("\\", "/") if system == _FAT else name


def _zip64_numbers(uri: str, name: str, extra: bytes, numbers: list[int]) -> list[int]:
    """Size, packed size and offset; those that do not fit into 32 bits are read from the extra
    field."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        field = extra[4 : 4 + length]
        extra = extra[4 + length :]
        if kind == _ZIP64_EXTRA and len(field) >= 8 * numbers.count(_NOT_HERE_32):
            wide = iter(struct.unpack_from(f"<{len(field) // 8}Q", field))
            return [next(wide) if number == _NOT_HERE_32 else number for number in numbers]
    raise _damaged(uri, f"member {name!r} has no zip64 sizes")


def _damaged(uri: str, why: str) -> ZipError:
    return ZipError(
        f"{uri} cannot be read as a zip: {why}. It is damaged, or was not fully copied."
    )
