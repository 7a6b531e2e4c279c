"""Packs documents into rows of equal length. Pure arithmetic: lengths in, places out.

A segment is a document or a piece of one: the start token, then text tokens, then the end token if the document ends
there. A document is cut only if it is longer than a row or, with "concat", where the row is full."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.tokenizers import Packing

__all__ = ["Piece", "packed_rows"]


class Piece(NamedTuple):
    """Tokens begin..end of a document, counted with its end token, which follow a start token in the row."""

    document: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Tokens in the row, with the start token."""
        return self.end - self.begin + 1


def packed_rows(num_tokens: Sequence[int], row_length: int, packing: Packing) -> list[list[Piece]]:
    """The pieces of each row, in the order of the documents.

    num_tokens: of each document, with its end token. row_length: at least 2, for a start token and one other."""
    if packing == "concat":
        return _concatenated(num_tokens, row_length)
    rows = _best_fit(_pieces(num_tokens, row_length - 1), row_length)
    for row in rows:
        row.sort()
    return rows


def _concatenated(num_tokens: Sequence[int], row_length: int) -> list[list[Piece]]:
    rows: list[list[Piece]] = []
    free = 0
    for document, total in enumerate(num_tokens):
        begin = 0
        while begin < total:
            if free < 2:  # a start token alone would be no segment
                rows.append([])
                free = row_length
            end = min(total, begin + free - 1)
            rows[-1].append(Piece(document, begin, end))
            free -= end - begin + 1
            begin = end
    return rows


def _pieces(num_tokens: Sequence[int], most: int) -> Iterator[Piece]:
    """Documents, those of more than `most` tokens cut into pieces of that many and a rest."""
    for document, total in enumerate(num_tokens):
        for begin in range(0, total, most):
            yield Piece(document, begin, min(total, begin + most))


def _best_fit(pieces: Iterator[Piece], row_length: int) -> list[list[Piece]]:
    """Best-fit decreasing: the longest piece first, each into the fullest row that has space for it.

    The bits of a number say which amounts of free space some row has, so a search takes a microsecond."""
    rows: list[list[Piece]] = []
    by_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    spaces = 0
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        fitting = spaces >> piece.size
        if fitting:
            space = piece.size + (fitting & -fitting).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
            rows[row].append(piece)
        else:
            row, space = len(rows), row_length
            rows.append([piece])
        left = space - piece.size
        by_space[left].append(row)
        spaces |= 1 << left
    return rows
