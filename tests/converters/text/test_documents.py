"""Documents in text files and tables, read completely and in ranges."""

import bz2
import contextlib
import gzip
import itertools
import json
import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from converters.text import documents as module
from converters.text.documents import DocumentFormat, documents
from converters.text.packing import Piece, packed_rows
from pipeline.errors import InfeedError, RawDataError
from pipeline.raw.rows import Table
from pipeline.storage import storage
from pipeline.storage.local import LocalStorage

BLOCKS, ROWS = DocumentFormat("block"), DocumentFormat()
COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress}
with contextlib.suppress(InfeedError):  # Python 3.14 and backports.zstd read it
    if storage._library(".zst"):
        COMPRESSORS[".zst"] = zstandard.ZstdCompressor().compress
LINES = st.lists(st.sampled_from(["a", "bb  ", "", " ", "\t", "ccccc"]), max_size=30)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


def found(path, reading, begin=0, end=None):
    return list(documents(LocalStorage(), str(path), reading, begin, end))


def in_ranges(path, reading, cuts):
    bounds = sorted({0, *(cut for cut in cuts if cut < path.stat().st_size)})
    return [
        each
        for a, b in zip(bounds, [*bounds[1:], path.stat().st_size], strict=True)
        for each in found(path, reading, a, b)
    ]


@given(LINES, st.sampled_from(["\n", "\r\n"]), st.sets(st.integers(4, 120)), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_blocks_are_the_same_in_any_ranges(file, lines, newline, cuts, bom):
    path = file / "x.txt"
    path.write_bytes(b"\xef\xbb\xbf" * bom + newline.join(lines).encode())
    expected, block = [], []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            expected.append(newline.join(block))
            block = []
    whole = found(path, BLOCKS)
    assert [each.raw.decode() for each in whole] == expected
    assert in_ranges(path, BLOCKS, cuts) == whole
    content = path.read_bytes()
    assert all(content[each.offset :].startswith(each.raw) for each in whole)


@given(st.lists(st.text(max_size=9), max_size=12), st.sets(st.integers(1, 300)))
@settings(max_examples=examples(200), deadline=None)
def test_rows_of_json_are_the_same_in_any_ranges(file, texts, cuts):
    path = file / "x.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    whole = found(path, ROWS)
    assert [each.raw.decode() for each in whole] == texts
    assert in_ranges(path, ROWS, cuts) == whole


def test_a_line_that_is_longer_than_a_piece_is_one_line(file, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 4)
    path = file / "long.txt"
    path.write_text("abcd    efgh\nij\n\nk" + "l" * 9 + "\n")
    assert [each.raw for each in found(path, BLOCKS)] == [b"abcd    efgh\nij", b"k" + b"l" * 9]
    for cut in range(1, path.stat().st_size):
        assert in_ranges(path, BLOCKS, [cut]) == found(path, BLOCKS)


def test_a_file_is_one_document_without_its_byte_order_mark(file):
    (file / "one.txt").write_bytes(b"\xef\xbb\xbfa\n\nb\n")
    assert found(file / "one.txt", DocumentFormat()) == [(0, b"a\n\nb\n", "")]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl"])
def test_a_compressed_file_has_the_same_documents(file, name):
    text = {
        "a.txt": "Ein\nKäse",
        "a.csv": 'n,text\n1,"x\ny"\n2,z\n',
        "a.tsv": "text\tn\nx\t1\n",
    }.get(name, '{"text": "é"}\n')
    (file / name).write_text(text)
    for suffix, compress in COMPRESSORS.items():
        packed = file / f"{name}{suffix}"
        # a file may have several parts, as those of pbzip2 and pzstd have
        packed.write_bytes(compress(text[:4].encode()) + compress(text[4:].encode()))
        assert found(file / name, DocumentFormat()) == found(packed, DocumentFormat()) != []
        if name != "a.txt":
            assert "text" in Table(str(packed)).column_names()


def test_unusable_documents_state_why(file):
    (file / "bad.txt").write_bytes(b"ab\xffc")
    (file / "empty.txt").write_bytes(b"")
    (file / "long.txt").write_bytes(b"x" * 10)
    rows = ['{"text": 7}', '{"other": ""}', '{"text": "\\ud800"}', "{", '{"text": ""}']
    (file / "bad.jsonl").write_text("\n".join(rows))
    reading = DocumentFormat(max_bytes=9)
    assert [
        found(file / name, reading)[0].error for name in ("bad.txt", "empty.txt", "long.txt")
    ] == [
        "not UTF-8: byte 0xff at byte 2 of the document",
        "an empty document",
        "more than --max-document-bytes=9 bytes",
    ]
    assert [each.error.partition(" at")[0] for each in found(file / "bad.jsonl", reading)] == [
        "'text' is 7; it must be text",
        "no 'text' in it",
        "'text' is '\\ud800', which is not Unicode text",
        "not JSON: Expecting property name enclosed in double quotes",
        "an empty document",
    ]


def test_a_block_beyond_the_limit_is_one_unusable_document_that_is_not_kept(file):
    (file / "big.txt").write_text("a\n\n" + "long line\n" * 1000 + "\nb\n")
    before, long, after = found(file / "big.txt", DocumentFormat("block", max_bytes=100))
    assert (before.raw, after.raw) == (b"a", b"b")
    assert long.error == "more than --max-document-bytes=100 bytes"
    assert len(long.raw) < 130


def test_a_range_without_blank_lines_is_not_read_beyond_its_end(file, monkeypatch):
    (file / "dense.txt").write_text("a line\n" * 1000)
    read, opened = [], LocalStorage.open

    def counted(self, path):
        lines = opened(self, path)
        readline = lines.readline
        lines.readline = lambda size: read.append(1) or readline(size)
        return lines

    monkeypatch.setattr(LocalStorage, "open", counted)
    assert found(file / "dense.txt", BLOCKS, 70, 140) == []
    assert 0 < len(read) < 20


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_truncated_or_damaged_file_is_an_error_with_its_name(file, suffix):
    cut = file / f"cut.txt{suffix}"
    for data in (COMPRESSORS[suffix](b"text" * 99)[:-9], b"no such file"):
        cut.write_bytes(data)
        with pytest.raises(
            RawDataError, match=rf"cut\.txt\{suffix} is truncated or damaged: .*\. Copy it again\."
        ):
            found(cut, DocumentFormat())


def test_what_uncompresses_zst_is_named_where_it_is_not_installed(file, monkeypatch):
    for name in (
        "compression",
        "backports.zstd",
    ):  # what Python 3.14 has, and what earlier ones need
        monkeypatch.setitem(sys.modules, name, None)
    (file / "a.txt.zst").write_bytes(b"")
    with pytest.raises(InfeedError, match=r"a\.txt\.zst needs .*zstd \(.*\)\. Install it: pip"):
        found(file / "a.txt.zst", DocumentFormat())


LENGTHS = st.lists(st.integers(1, 40), max_size=60)
LENGTH = st.integers(2, 17)
PACKINGS = st.sampled_from(["documents", "concat"])


def sizes(row):
    return sum(piece.size for piece in row)


@given(LENGTHS, LENGTH, PACKINGS)
@settings(max_examples=examples(200), deadline=None)
def test_every_token_comes_once_and_in_order_within_its_document(lengths, row_length, packing):
    pieces = sorted(itertools.chain.from_iterable(packed_rows(lengths, row_length, packing)))
    for document, total in enumerate(lengths):
        bounds = [(piece.begin, piece.end) for piece in pieces if piece.document == document]
        assert [0, *(end for _, end in bounds)] == [*(begin for begin, _ in bounds), total]


@given(LENGTHS, LENGTH, PACKINGS)
@settings(max_examples=examples(200), deadline=None)
def test_no_row_is_empty_or_too_long_and_its_documents_are_in_order(lengths, row_length, packing):
    for row in packed_rows(lengths, row_length, packing):
        assert 2 <= sizes(row) <= row_length
        assert row == sorted(row)


@given(LENGTHS, LENGTH)
@settings(max_examples=examples(200), deadline=None)
def test_documents_are_cut_only_if_they_are_longer_than_a_row(lengths, row_length):
    for piece in itertools.chain.from_iterable(packed_rows(lengths, row_length, "documents")):
        is_cut = (piece.begin, piece.end) != (0, lengths[piece.document])
        assert not is_cut or lengths[piece.document] > row_length - 1


@given(LENGTHS, LENGTH)
@settings(max_examples=examples(200), deadline=None)
def test_concatenated_rows_but_the_last_lack_at_most_one_token(lengths, row_length):
    *full, _ = packed_rows(lengths, row_length, "concat") or [[]]
    assert all(sizes(row) >= row_length - 1 for row in full)


@given(LENGTHS, LENGTH)
@settings(max_examples=examples(200), deadline=None)
def test_best_fit_never_opens_a_row_that_two_half_empty_rows_could_have_shared(lengths, row_length):
    rows = sorted(map(sizes, packed_rows(lengths, row_length, "documents")))
    assert len(rows) < 2 or rows[0] + rows[1] > row_length


def test_the_longest_documents_come_first_and_each_goes_where_it_leaves_the_least_space():
    rows = packed_rows([2, 6, 4, 3], 10, "documents")  # with start tokens: 3, 7, 5 and 4
    assert rows == [[Piece(0, 0, 2), Piece(1, 0, 6)], [Piece(2, 0, 4), Piece(3, 0, 3)]]


def test_a_document_goes_into_the_fuller_of_two_rows_with_space():
    rows = packed_rows([5, 6, 2], 10, "documents")  # rows of 7 and 6, then a piece of 3
    assert rows == [[Piece(1, 0, 6), Piece(2, 0, 2)], [Piece(0, 0, 5)]]


@pytest.mark.parametrize("packing", ["documents", "concat"])
def test_no_documents_make_no_rows(packing):
    assert packed_rows([], 8, packing) == []
