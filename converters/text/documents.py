"""Documents in raw files: complete text files, blocks of lines between blank lines, or a column of a table.

Reads a file, or the documents that begin in a range of it, and holds one document at a time in memory. Texts of errors
are part of plan digests."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from converters.raw.compressed import uncompressed
from converters.table.cells import document_cell
from converters.table.rows import TABLE_SUFFIXES, is_json, rows_of
from pipeline.storage.storage import Storage

TEXT_SUFFIX, GZIP = ".txt", ".gz"
_BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 1 << 20


class Document(NamedTuple):
    """A document: its UTF-8 text, or why it cannot be used.

    offset: of its first byte in the uncompressed file. raw: what decides its split: the text or, if it is unusable, the
    bytes in its place."""

    offset: int
    raw: bytes
    error: str = ""


@dataclass(frozen=True)
class DocumentFormat:
    """What a document is. unit: of text files. column: of tables. max_bytes: longer documents are unusable."""

    unit: Literal["file", "block"] = "file"
    column: str = "text"
    delimiter: str | None = None
    max_bytes: int = 16 * 10**6


def bare_name(uri: str) -> str:
    """The name without .gz, whose suffix states the format."""
    return uri.removesuffix(GZIP)


def can_be_cut(uri: str, reading: DocumentFormat) -> bool:
    """Whether ranges of the file can be read on their own. A line of csv may be inside a quoted cell."""
    return is_json(uri) or (uri.endswith(TEXT_SUFFIX) and reading.unit == "block")


def documents(
    storage: Storage, uri: str, reading: DocumentFormat, begin: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents that begin in bytes begin..end of a file; end: None for all. Raises RawDataError, StorageError."""
    with uncompressed(storage, uri) as file:
        name = bare_name(uri)
        if name.endswith(TABLE_SUFFIXES):
            yield from _of_table(file, name, reading, begin, end)
        elif reading.unit == "block":
            yield from _blocks(file, reading.max_bytes, begin, end)
        else:
            yield _whole_file(file, reading.max_bytes)


def _document(offset: int, text: bytes, max_bytes: int) -> Document:
    if len(text) > max_bytes:
        return Document(offset, text, _too_long(max_bytes))
    if not text:
        return Document(offset, text, "an empty document")
    try:
        text.decode()
    except UnicodeDecodeError as e:
        return Document(offset, text, f"not UTF-8: byte {text[e.start]:#04x} at byte {e.start} of the document")
    return Document(offset, text)


def _too_long(max_bytes: int) -> str:
    return f"more than --max_document_bytes={max_bytes} bytes"


def _whole_file(file: BinaryIO, max_bytes: int) -> Document:
    text = file.read(max_bytes + len(_BOM) + 1)
    return _document(0, text.removeprefix(_BOM), max_bytes)


def _of_table(file: BinaryIO, name: str, reading: DocumentFormat, begin: int, end: int | None) -> Iterator[Document]:
    if begin:
        begin = _next_line(file, begin)
    for row in rows_of(file, name, reading.delimiter, begin):
        if end is not None and row.offset >= end:
            return
        if row.error:
            yield Document(row.offset, row.error.encode(), row.error)
            continue
        try:
            yield _document(row.offset, document_cell(row.cells, reading.column), reading.max_bytes)
        except ValueError as e:
            yield Document(row.offset, str(e).encode(), str(e))


def _next_line(file: BinaryIO, offset: int) -> int:
    """The offset of the first line that begins at this offset or later."""
    file.seek(offset - 1)
    at, piece = offset - 1, b"?"
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(_PIECE_BYTES)
        at += len(piece)
    return at


def _blocks(file: BinaryIO, max_bytes: int, begin: int, end: int | None) -> Iterator[Document]:
    """The blocks after the first blank line from `begin` on, to the first blank line from `end` on.

    So every block is in exactly one of several ranges that cover the file, whatever their borders."""
    skipping, block = bool(begin), _TextBlock(max_bytes)
    for line in _lines(file, begin):
        if skipping and end is not None and line.offset >= end:
            return  # no block begins in this range
        if line.is_blank:
            if block.lines and not skipping:
                yield block.document()
            block, skipping = _TextBlock(max_bytes), False
            if end is not None and line.offset >= end:
                return
        elif not skipping:
            block.add(line)
    if block.lines and not skipping:
        yield block.document()


class _TextLine(NamedTuple):
    """A line with its line break, or a piece of one that is longer than 1 MiB."""

    offset: int
    data: bytes
    is_complete: bool

    @property
    def is_blank(self) -> bool:
        return self.is_complete and not self.data.strip()


class _TextBlock:
    """Lines of one document. Keeps little more than the limit."""

    def __init__(self, max_bytes: int) -> None:
        self.lines: list[_TextLine] = []
        self._size, self._max_bytes = 0, max_bytes

    def add(self, line: _TextLine) -> None:
        if self._size <= self._max_bytes + len(b"\r\n"):
            self.lines.append(line)
        self._size += len(line.data)

    def document(self) -> Document:
        """Without the last line break."""
        text = b"".join(line.data for line in self.lines)
        return _document(self.lines[0].offset, text.rstrip(b"\r\n"), self._max_bytes)


def _lines(file: BinaryIO, begin: int) -> Iterator[_TextLine]:
    """The lines that begin at this offset or later, after a byte order mark at the beginning."""
    at = _next_line(file, begin) if begin else len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(at)
    begins = True
    while data := file.readline(_PIECE_BYTES):
        ends = data.endswith(b"\n") or len(data) < _PIECE_BYTES
        yield _TextLine(at, data, begins and ends)
        at, begins = at + len(data), ends
