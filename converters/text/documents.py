"""Documents in raw files: complete text files, blocks of lines between blank lines, or a column of
a table.

files by split   train/**, validation/** (or val), test/**; or train*.txt, validation-1.jsonl, ...
one set          all files, also in subdirectories; a fraction of the documents is for validation

A source is a group of small files, a range of a large file that can be cut, or a large file that
cannot. Reading a source holds one document at a time in memory. Texts of errors are part of plan
digests."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from beam_jobs.converter import Source, group_of
from beam_jobs.rows.references import File
from converters.raw.files import files_below, first_few, open_raw_data
from converters.raw.splits import HeldOut, by_split, chosen
from converters.table.layouts import RawTables
from pipeline.errors import RawDataError
from pipeline.raw.cells import cell_of, document_cell
from pipeline.raw.rows import BOM, TEXT_TABLE_SUFFIXES, Table, after_mark, is_json, suffix_of
from pipeline.shards.schema import USUAL_FORMAT, TableFormat
from pipeline.storage.storage import COMPRESSED, Stat, Storage, is_compressed, join, uncompressed

TEXT_SUFFIX = ".txt"
_PIECE_BYTES = 1 << 20
SLICE_BYTES = 16 * 10**6  # of raw data; packing takes about twenty times as much memory
SUFFIXES = (TEXT_SUFFIX, *TEXT_TABLE_SUFFIXES)


class Document(NamedTuple):
    """A document: its UTF-8 text, or why it cannot be used.

    offset: of its first byte in the uncompressed file. raw: what decides its split: the text or, if
    it is unusable, the bytes in its place."""

    offset: int
    raw: bytes
    error: str = ""


@dataclass(frozen=True)
class DocumentFormat:
    """The definition of a document. unit: of text files. column: of tables. max_bytes: longer
    documents are unusable."""

    unit: Literal["file", "block"] = "file"
    column: str = "text"
    format: TableFormat = USUAL_FORMAT
    max_bytes: int = 16 * 10**6


def can_be_cut(uri: str, reading: DocumentFormat) -> bool:
    """Whether ranges of the file can be read on their own. A line of csv may be inside a quoted
    cell."""
    is_cut = is_json(uri) or (suffix_of(uri) == TEXT_SUFFIX and reading.unit == "block")
    return is_cut and not is_compressed(uri)


def documents(
    storage: Storage, uri: str, reading: DocumentFormat, begin: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents that begin in bytes begin..end of a file; end: None for all. Raises
    RawDataError, StorageError."""
    with uncompressed(storage, uri) as file:
        if suffix_of(uri) in TEXT_TABLE_SUFFIXES:
            yield from _of_table(file, uri, reading, begin, end)
        elif reading.unit == "block":
            yield from _blocks(file, reading.max_bytes, begin, end)
        else:
            text = file.read(reading.max_bytes + len(BOM) + 1)
            yield _document(0, text.removeprefix(BOM), reading.max_bytes)


def _document(offset: int, text: bytes, max_bytes: int) -> Document:
    if len(text) > max_bytes:
        return Document(offset, text, f"more than --max-document-bytes={max_bytes} bytes")
    if not text:
        return Document(offset, text, "an empty document")
    try:
        text.decode()
    except UnicodeDecodeError as e:
        return Document(
            offset, text, f"not UTF-8: byte {text[e.start]:#04x} at byte {e.start} of the document"
        )
    return Document(offset, text)


def _of_table(
    file: BinaryIO, name: str, reading: DocumentFormat, begin: int, end: int | None
) -> Iterator[Document]:
    if begin:
        begin = _next_line(file, begin)
    for row in Table(name, reading.format).rows_in(file, begin):
        if end is not None and row.offset >= end:
            return
        try:
            if row.error:
                raise ValueError(row.error)
            text = document_cell(reading.column, cell_of(row.cells, reading.column))
            yield _document(row.offset, text, reading.max_bytes)
        except ValueError as e:
            yield Document(row.offset, str(e).encode(), str(e))


def _next_line(file: BinaryIO, offset: int) -> int:
    """The offset of the first line that begins at this offset or later."""
    file.seek(offset - 1)
    at = offset - 1
    piece = b"?"
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(_PIECE_BYTES)
        at += len(piece)
    return at


def _blocks(file: BinaryIO, max_bytes: int, begin: int, end: int | None) -> Iterator[Document]:
    """The blocks after the first blank line from `begin` on, to the first blank line from `end` on.

    So every block is in exactly one of several ranges that cover the file, whatever their
    borders."""
    skipping = bool(begin)
    lines = list[_TextLine]()
    size = 0
    for line in _lines(file, begin):
        is_after = end is not None and line.offset >= end
        if skipping and is_after:
            return  # no block begins in this range
        if line.is_blank:
            if lines:
                yield _block(lines, max_bytes)
            lines = []
            size = 0
            skipping = False
            if is_after:
                return
        elif not skipping:
            if size <= max_bytes + len(b"\r\n"):  # keeps little more than the limit
                lines.append(line)
            size += len(line.data)
    if lines:
        yield _block(lines, max_bytes)


class _TextLine(NamedTuple):
    """A line with its line break, or a piece of one that is longer than 1 MiB."""

    offset: int
    data: bytes
    is_blank: bool


def _block(lines: Sequence[_TextLine], max_bytes: int) -> Document:
    """The document of these lines, without the last line break."""
    text = b"".join(line.data for line in lines)
    return _document(lines[0].offset, text.rstrip(b"\r\n"), max_bytes)


def _lines(file: BinaryIO, begin: int) -> Iterator[_TextLine]:
    """The lines that begin at this offset or later, after a byte order mark at the beginning."""
    at = _next_line(file, begin) if begin else after_mark(file)
    file.seek(at)
    begins = True
    while data := file.readline(_PIECE_BYTES):
        ends = data.endswith(b"\n") or len(data) < _PIECE_BYTES
        yield _TextLine(at, data, begins and ends and not data.strip())
        at += len(data)
        begins = ends


def find_texts(
    raw_data_dir: str, splits: Sequence[str], held_out: HeldOut | None, reading: DocumentFormat
) -> RawTables:
    """The sources of the chosen splits, or of all splits that exist; others are all files that are
    not read. held_out: None for files by split.

    Raises RawDataError if something is missing, OptionError."""
    storage = open_raw_data(raw_data_dir)
    files = dict(files_below(storage, raw_data_dir))
    texts = {
        name: stat
        for name, stat in files.items()
        if suffix_of(name) in SUFFIXES
        # An empty table has no documents; an empty text file is one that cannot be used.
        and (stat.bytes or suffix_of(name) == TEXT_SUFFIX)
    }
    if not texts:
        raise RawDataError(
            f"{raw_data_dir} has no text: no file ends in {', '.join(SUFFIXES)}, with or without "
            f"{', '.join(COMPRESSED)}. It has: {first_few(files)}."
        )
    examples = "files of a split, such as train/a.txt or validation-1.jsonl"
    names = by_split(raw_data_dir, list(texts), held_out, examples)
    read = set(itertools.chain.from_iterable(names.values()))
    sources = list[Source]()
    for split in chosen(raw_data_dir, splits, names):
        read_files = [(name, File(join(raw_data_dir, name), texts[name])) for name in names[split]]
        sources += _sources(split, read_files, reading)
    tables = [
        Table(join(raw_data_dir, name), reading.format)
        for name in sorted(read)
        if suffix_of(name) in TEXT_TABLE_SUFFIXES
    ]
    return RawTables(sources, tables, [name for name in files if name not in read])


def _sources(
    split: str, files: Sequence[tuple[str, File]], reading: DocumentFormat
) -> Iterator[Source]:
    """The units to scan, whose tags are the paths of their first files in the raw data. files: with
    these paths."""
    group: list[tuple[str, File]] = []
    size = 0
    for name, file in files:
        file_bytes = file.stat.bytes
        if file_bytes > SLICE_BYTES:
            yield from _slices(split, name, file, reading)
            continue
        if size + file_bytes > SLICE_BYTES:
            yield _group(split, group)
            group = []
            size = 0
        group.append((name, file))
        size += file_bytes
    if group:
        yield _group(split, group)


def _slices(split: str, name: str, file: File, reading: DocumentFormat) -> Iterator[Source]:
    total = file.stat.bytes
    step = SLICE_BYTES if can_be_cut(name, reading) else total
    for begin in range(0, total, step):
        size = min(step, total - begin)
        yield Source(split, file.uri, file.stat, begin, size, tag=name, kind="file")


def _group(split: str, named: Sequence[tuple[str, File]]) -> Source:
    tags, files = zip(*named, strict=True)
    size = sum(file.stat.bytes for file in files)
    return Source(
        split,
        files[0].uri,
        Stat(size),
        bytes=size,
        tag=tags[0],
        kind="group",
        group=group_of(files),
    )
