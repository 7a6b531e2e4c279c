"""Documents packed into rows: arithmetic on their lengths."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from converters.text.packing import Piece, packed_rows

LENGTHS = st.lists(st.integers(1, 40), max_size=60)
ROWS = st.integers(2, 17)
PACKINGS = st.sampled_from(["documents", "concat"])


def sizes(row):
    return sum(piece.size for piece in row)


@given(LENGTHS, ROWS, PACKINGS)
@settings(max_examples=examples(200), deadline=None)
def test_every_token_comes_once_and_in_order_within_its_document(lengths, row_length, packing):
    pieces = sorted(itertools.chain.from_iterable(packed_rows(lengths, row_length, packing)))
    for document, total in enumerate(lengths):
        bounds = [(piece.begin, piece.end) for piece in pieces if piece.document == document]
        assert [0, *(end for _, end in bounds)] == [*(begin for begin, _ in bounds), total]


@given(LENGTHS, ROWS, PACKINGS)
@settings(max_examples=examples(200), deadline=None)
def test_no_row_is_empty_or_too_long_and_its_documents_are_in_order(lengths, row_length, packing):
    for row in packed_rows(lengths, row_length, packing):
        assert 2 <= sizes(row) <= row_length
        assert row == sorted(row)


@given(LENGTHS, ROWS)
@settings(max_examples=examples(200), deadline=None)
def test_documents_are_cut_only_if_they_are_longer_than_a_row(lengths, row_length):
    for piece in itertools.chain.from_iterable(packed_rows(lengths, row_length, "documents")):
        is_cut = (piece.begin, piece.end) != (0, lengths[piece.document])
        assert not is_cut or lengths[piece.document] > row_length - 1


@given(LENGTHS, ROWS)
@settings(max_examples=examples(200), deadline=None)
def test_concatenated_rows_but_the_last_lack_at_most_one_token(lengths, row_length):
    *full, _ = packed_rows(lengths, row_length, "concat") or [[]]
    assert all(sizes(row) >= row_length - 1 for row in full)


@given(LENGTHS, ROWS)
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
